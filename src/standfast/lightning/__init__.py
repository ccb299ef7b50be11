"""Lightning: its checkpoints in a store, saved beside the training and resumed exactly.

    from standfast.lightning import StandfastCheckpoint

    checkpoint = StandfastCheckpoint("experiments", every_n_train_steps=100)
    trainer = Trainer(callbacks=[checkpoint])
    trainer.fit(model)                       # started again, it continues

`StandfastIO` is for programs that keep their ModelCheckpoint: what it writes goes into a store.
docs/coming-from/lightning.md has both.
"""

from standfast.lightning.callback import StandfastCheckpoint
from standfast.lightning.io import StandfastIO
from standfast.lightning.references import load_checkpoint

__all__ = ["StandfastCheckpoint", "StandfastIO", "load_checkpoint"]
