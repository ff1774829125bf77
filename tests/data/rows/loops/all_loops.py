"""Rows in loops of others, on the ranks that were started: all_loops.py STORES FOLDER CHECKPOINT [--resume]."""

import contextlib
import json
import logging
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from rankwise import Order
from rankwise.data.rows import Loader, RowSource
from rankwise.data.rows.samplers import DistributedSampler, RandomSampler

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

BATCH_SIZE, NUM_COLS, SAVED_STEPS = 14, 11, 4


def make_loader(stores):
    """An ordered loader of dense rows; its rank is that of the process group that is there."""
    source = RowSource(stores, obs=("n",), dense=True, dtype="f8", threads=1)
    return Loader(source, order=Order(source, batch_size=BATCH_SIZE), micro_batch=5)


def make_layer():
    layer = torch.nn.Linear(NUM_COLS, 1, dtype=torch.float64)
    torch.nn.init.constant_(layer.weight, 1e-3)
    torch.nn.init.zeros_(layer.bias)
    return layer


def summed_loss(model, x):
    return (model(x / 250)[:, 0] - 1).square().sum()


def note(batch):
    return [(batch.share.step.epoch, int(i), int(n)) for i, n in zip(batch.ids, batch["n"], strict=True)]


def told(seen, layer, loader=None):
    return {"seen": seen, "weights": layer.weight[0].tolist(), "state": loader and loader.state_dict()}


class Rows(LightningDataModule):
    """The loader is made where Lightning asks for it: the process group is there then."""

    def __init__(self, stores):
        super().__init__()
        self.stores = stores

    def train_dataloader(self):
        self.loader = make_loader(self.stores)
        return self.loader.with_full_length()


class MarkDone(Callback):
    """Before `ModelCheckpoint` saves."""

    def on_train_batch_end(self, trainer, module, outputs, batches, number):
        trainer.datamodule.loader.mark_done(batches[-1].resume)


class PowerCutError(Exception):
    pass


class CutOff(Callback):
    def __init__(self, steps):
        self.steps = steps

    def on_train_batch_start(self, trainer, module, batches, number):
        if trainer.global_step == self.steps:
            raise PowerCutError


class Regressor(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = make_layer(), []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Ordered(Regressor):
    def training_step(self, batches, number):
        self.seen += [row for batch in batches for row in note(batch)]
        total = sum(summed_loss(self.layer, batch["X"]) for batch in batches)
        return total * self.trainer.world_size / batches[0].share.step.count


class Sampled(Regressor):
    """Batches of a sampler; Lightning itself tells `batch_sampler` the epoch."""

    def training_step(self, batch, number):
        rows = zip(batch["index"], batch["obs"]["n"], strict=True)
        self.seen += [(self.current_epoch, int(index), int(n)) for index, n in rows]
        return summed_loss(self.layer, batch["X"].to_dense().double()) / len(batch["X"])


def fit(module, data, num_ranks, *, save=None, every=SAVED_STEPS, stop=None, resume=None, epochs=2):
    callbacks = [] if isinstance(module, Sampled) else [MarkDone()]
    if save is not None:
        callbacks.insert(0, ModelCheckpoint(save.parent, filename=save.stem, every_n_train_steps=every))
    trainer = Trainer(
        accelerator="cpu",
        devices=num_ranks,
        strategy="ddp" if num_ranks > 1 else "auto",
        max_epochs=epochs,
        callbacks=callbacks if stop is None else [*callbacks, CutOff(stop)],
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=save is not None,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with contextlib.suppress(PowerCutError):
        trainer.fit(module, data, ckpt_path=resume)
    return trainer


def lightning(stores, num_ranks, **options):
    module, data = Ordered(), Rows(stores)
    fit(module, data, num_ranks, **options)
    data.loader.close()
    return told(module.seen, module.layer, data.loader)


class Sampling(LightningDataModule):
    def __init__(self, stores, num_ranks):
        super().__init__()
        self.stores, self.num_ranks = stores, num_ranks

    def train_dataloader(self):
        sampler = RandomSampler(chunk_size=5, preload_nchunks=2, batch_size=10, rng=0)
        if self.num_ranks > 1:
            sampler = DistributedSampler(sampler, dist_info="torch")
        return Loader(self.stores, batch_sampler=sampler, return_index=True, to="torch")


def lightning_sampled(stores, num_ranks, **options):
    module = Sampled()
    fit(module, Sampling(stores, num_ranks), num_ranks, **options)
    return told(module.seen, module.layer)


def accelerate(stores):
    accelerator = Accelerator(cpu=True)
    layer, seen = make_layer(), []
    with make_loader(stores) as loader:
        model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=1e-3))
        assert accelerator.prepare(loader) is loader
        accelerator.register_for_checkpointing(loader)
        for _ in range(2):
            for batches in loader:
                for batch in batches:
                    seen += note(batch)
                    with contextlib.nullcontext() if batch is batches[-1] else accelerator.no_sync(model):
                        total = summed_loss(model, batch["X"])
                        accelerator.backward(total * accelerator.num_processes / batch.share.step.count)
                optimizer.step()
                optimizer.zero_grad()
                loader.mark_done(batches[-1].resume)
        return told(seen, layer, loader)


def main():
    stores, folder, checkpoint = sys.argv[1].split(","), Path(sys.argv[2]), Path(sys.argv[3])
    rank, num_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    results = {"lightning": lightning(stores, num_ranks)}
    if "--resume" not in sys.argv:
        results["cut"] = lightning(stores, num_ranks, save=checkpoint, stop=6)
        results["accelerate"] = accelerate(stores)
        inside = checkpoint.with_name("sampled.ckpt")
        results["sampled"] = lightning_sampled(stores, num_ranks)
        results["sampled, cut"] = lightning_sampled(stores, num_ranks, save=inside, every=3, stop=4)
        results["sampled, resumed"] = lightning_sampled(stores, num_ranks, resume=inside)
    results["resumed"] = lightning(stores, num_ranks, resume=checkpoint)
    (folder / f"rank{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
