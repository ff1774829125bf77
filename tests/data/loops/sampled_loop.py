"""Lightning's loop over a loader of rows with a sampler, whose epoch Lightning itself tells."""

from lightning_loop import Regressor, fit
from shared_loop import summed_loss, told

from rankwise.data.rows import Loader
from rankwise.data.rows.samplers import DistributedSampler, RandomSampler


class Sampled(Regressor):
    """Batches of a sampler."""

    def train_dataloader(self):
        sampler = RandomSampler(chunk_size=5, preload_nchunks=2, batch_size=10, rng=0)
        if self.trainer.world_size > 1:
            sampler = DistributedSampler(sampler, dist_info="torch")
        return Loader(self.place.split(","), batch_sampler=sampler, return_index=True, to="torch")

    def training_step(self, batch, number):
        rows = zip(batch["index"], batch["obs"]["n"], strict=True)
        self.seen += [(self.current_epoch, int(index), int(n)) for index, n in rows]
        return summed_loss(self.layer, batch["X"].to_dense().double() / 250) / len(batch["X"])


def train_sampled(kind, places, num_ranks, **options):
    """Train; options are those of `fit`."""
    module = Sampled(kind, places)
    fit(module, num_ranks, **options)
    return told(module.seen, module.layer)
