"""Lightning: its checkpoints in a store, saved beside the training and resumed exactly.

    from standfast.adapters.lightning import StandfastCheckpoint

    checkpoint = StandfastCheckpoint("experiments", every_n_train_steps=100)
    trainer = Trainer(callbacks=[checkpoint])
    trainer.fit(model)                       # started again, it continues

`StandfastIO` is for programs that keep their ModelCheckpoint: what it writes goes into a store.
docs/coming-from/lightning.md has both.
"""

from standfast.adapters.lightning_callback import StandfastCheckpoint
from standfast.adapters.lightning_io import StandfastIO
from standfast.adapters.lightning_references import load_checkpoint

__all__ = ["StandfastCheckpoint", "StandfastIO", "load_checkpoint"]
