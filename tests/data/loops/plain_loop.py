"""A loop of one's own over DistributedDataParallel."""

from contextlib import nullcontext

from shared_loop import make_layer, make_optimizer, note, summed_loss, told
from torch import distributed
from torch.nn.parallel import DistributedDataParallel


def train_plain(kind, place, *, epochs=2):
    """Train on the group that is there, or alone; the gradient of a step is the mean over its samples on all ranks."""
    num_ranks = distributed.get_world_size() if distributed.is_initialized() else 1
    layer, seen = make_layer(kind), []
    model = DistributedDataParallel(layer) if num_ranks > 1 else layer
    optimizer = make_optimizer(model.parameters())
    with kind.open(place) as loader:
        for _ in range(epochs):
            for batches in loader:
                for batch in batches:
                    seen += note(kind, batch)
                    quiet = batch is not batches[-1] and num_ranks > 1
                    with model.no_sync() if quiet else nullcontext():
                        (summed_loss(model, kind.inputs(batch)) * num_ranks / batch.share.step.count).backward()
                optimizer.step()
                optimizer.zero_grad()
                loader.mark_done(batches[-1].resume)
        return told(seen, layer, loader)
