"""An Accelerate loop."""

from contextlib import nullcontext

from accelerate import Accelerator
from shared_loop import make_layer, make_optimizer, make_pipeline, note, summed_loss, told


def train_accelerate(volume, *, prepared, epochs=2, save=None):
    """Train; `prepared` hands the pipeline to `prepare` with the rest, which leaves it as it is.

    With `save` = (folder, steps) the state is saved there after so many steps, and loaded at the end to tell of it.
    """
    accelerator = Accelerator(cpu=True)  # finds or makes the process group: before the pipeline, which looks for it
    layer, seen = make_layer(), []
    with make_pipeline(volume) as pipeline:
        model, optimizer = accelerator.prepare(layer, make_optimizer(layer.parameters()))
        if prepared:
            assert accelerator.prepare(pipeline) is pipeline
        accelerator.register_for_checkpointing(pipeline)
        done = 0
        for _ in range(epochs):
            for batches in pipeline:
                for batch in batches:
                    seen += note(batch)
                    with nullcontext() if batch is batches[-1] else accelerator.no_sync(model):
                        total = summed_loss(model, batch)
                        accelerator.backward(total * accelerator.num_processes / batch.share.step.count)
                optimizer.step()
                optimizer.zero_grad()
                pipeline.mark_done(batches[-1].resume)
                done += 1
                if save is not None and done == save[1]:
                    accelerator.save_state(str(save[0]))
        result = told(seen, layer, pipeline)
        if save is not None:
            accelerator.load_state(str(save[0]))
            result["loaded"] = pipeline.state_dict()
        return result
