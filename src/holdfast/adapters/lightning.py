"""Lightning: its checkpoints in a store, saved beside the training and resumed exactly.

    from holdfast.adapters.lightning import HoldfastCheckpoint

    checkpoint = HoldfastCheckpoint("experiments", every_n_train_steps=100)
    trainer = Trainer(callbacks=[checkpoint])
    trainer.fit(model)                       # started again, it continues

`HoldfastIO` is for programs that keep their ModelCheckpoint: what it writes goes into a store.
docs/coming-from/lightning.md has both.
"""

from holdfast.adapters.lightning_callback import HoldfastCheckpoint
from holdfast.adapters.lightning_io import HoldfastIO
from holdfast.adapters.lightning_references import load_checkpoint

__all__ = ["HoldfastCheckpoint", "HoldfastIO", "load_checkpoint"]
