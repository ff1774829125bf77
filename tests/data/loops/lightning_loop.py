"""Lightning's loop over ordered loaders: whole, cut off behind a checkpoint, and continued from it."""

import contextlib
import logging

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from shared_loop import make_layer, make_optimizer, note, summed_loss, told

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class MarkDone(Callback):
    """Marks a step done before `ModelCheckpoint` saves: Lightning calls the callbacks that save after the others."""

    def on_train_batch_end(self, trainer, module, outputs, batches, number):
        module.loader.mark_done(batches[-1].resume)


class PowerCutError(Exception):
    pass


class CutOff(Callback):
    """Ends the run behind a number of steps, as a fault would."""

    def __init__(self, steps):
        self.steps = steps

    def on_train_batch_start(self, trainer, module, batches, number):
        if trainer.global_step == self.steps:
            raise PowerCutError


class Regressor(LightningModule):
    """The loader is made where Lightning asks for it: the process group is there then."""

    def __init__(self, kind, place):
        super().__init__()
        self.kind, self.place, self.layer, self.seen = kind, place, make_layer(kind), []

    def train_dataloader(self):
        self.loader = self.kind.open(self.place)
        return self.loader.with_full_length()

    def training_step(self, batches, number):
        total = 0.0
        for batch in batches:
            self.seen += note(self.kind, batch)
            total = total + summed_loss(self.layer, self.kind.inputs(batch))
        return total * self.trainer.world_size / batches[0].share.step.count

    def configure_optimizers(self):
        return make_optimizer(self.parameters())


def train_lightning(kind, place, num_ranks, **options):
    """Train on an ordered loader; options are those of `fit`."""
    module = Regressor(kind, place)
    fit(module, num_ranks, callbacks=[MarkDone()], **options)
    module.loader.close()
    return told(module.seen, module.layer, module.loader)


def fit(module, num_ranks, *, callbacks=(), save=None, stop=None, resume=None, epochs=2):
    """Train; `save` = (file, steps) saves there every so many (None = epoch), `stop` ends it without a word."""
    callbacks = [*callbacks] if stop is None else [*callbacks, CutOff(stop)]
    if save is not None:
        file, steps = save
        callbacks.insert(0, ModelCheckpoint(file.parent, filename=file.stem, every_n_train_steps=steps))
    trainer = Trainer(
        accelerator="cpu",
        devices=num_ranks,
        strategy="ddp" if num_ranks > 1 else "auto",
        max_epochs=epochs,
        callbacks=callbacks,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=save is not None,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with contextlib.nullcontext() if stop is None else contextlib.suppress(PowerCutError):
        trainer.fit(module, ckpt_path=resume)
