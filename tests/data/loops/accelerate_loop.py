"""An Accelerate loop."""

from contextlib import nullcontext

from accelerate import Accelerator
from shared_loop import make_layer, make_optimizer, note, summed_loss, told


def train_accelerate(kind, place, *, prepared, epochs=2, save=None):
    """Train; `prepared` hands the loader to `prepare` with the rest, which leaves it as it is.

    With `save` = (folder, steps) the state is saved there after so many steps, and loaded at the end to tell of it.
    """
    accelerator = Accelerator(cpu=True)  # finds or makes the process group: before the loader, which looks for it
    layer, seen = make_layer(kind), []
    with kind.open(place) as loader:
        model, optimizer = accelerator.prepare(layer, make_optimizer(layer.parameters()))
        if prepared:
            assert accelerator.prepare(loader) is loader
        accelerator.register_for_checkpointing(loader)
        done = 0
        for _ in range(epochs):
            for batches in loader:
                for batch in batches:
                    seen += note(kind, batch)
                    with nullcontext() if batch is batches[-1] else accelerator.no_sync(model):
                        total = summed_loss(model, kind.inputs(batch))
                        accelerator.backward(total * accelerator.num_processes / batch.share.step.count)
                optimizer.step()
                optimizer.zero_grad()
                loader.mark_done(batches[-1].resume)
                done += 1
                if save is not None and done == save[1]:
                    accelerator.save_state(str(save[0]))
        result = told(seen, layer, loader)
        if save is not None:
            accelerator.load_state(str(save[0]))
            result["loaded"] = loader.state_dict()
        return result
