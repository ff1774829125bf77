"""The tokens example: exact over tokens, sharded, in half precision, and resumed as if nothing had happened."""

import argparse
import importlib.util
import json
import math
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import rankwise
from rankwise.checkpoint import Checkpointer, ModelState
from rankwise.data.samples import DatasetLoader
from rankwise.testing import run_ranks
from rankwise.train import Hooks
from rankwise.world import World

TRAIN = Path(__file__).parents[1] / "examples" / "tokens" / "train.py"


def example():
    """The script as a module, which no other example's train.py is mistaken for."""
    if "tokens_train" not in sys.modules:
        spec = importlib.util.spec_from_file_location("tokens_train", TRAIN)
        sys.modules["tokens_train"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["tokens_train"]


def fit(world, run, *, stop_after=None):
    """Six steps, saved every two, from the same beginning; or what is left of them."""

    def stop(trainer, report):
        if trainer.session.progressed.num_steps == stop_after:
            raise InterruptedError

    torch.manual_seed(0)
    args = argparse.Namespace(
        strategy="fsdp", precision="float32", batch_size=12, micro_batch=4, epochs=1, limit_steps=6
    )
    options = {"save_every": 2, "log_every": 1, "progress": False, "hooks": Hooks(step_end=stop)}
    try:
        result = example().fit(world, args, run=run, **options)
    except InterruptedError:
        return None
    return {"resumed": result.resumed_step, "steps": result.num_steps, **result.metrics}


def logged(run):
    """The numbers of each step, of the newest attempt that took it."""
    lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line for line in lines if "grad_norm" in line}


def weights(run):
    """What the last checkpoint holds, sharded or not, read by one process."""
    model = example().TokenModel()
    Checkpointer(Path(run) / "checkpoints", world=World.single()).restore({"model": ModelState(model)})
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs on two ranks: whole, stopped and resumed, sharded otherwise, and one stopped for a single rank."""
    folder = tmp_path_factory.mktemp("tokens")

    def cases(world):
        found = {"whole": fit(world, folder / "whole")}
        assert fit(world, folder / "resumed", stop_after=3) is None
        found["resumed"] = fit(world, folder / "resumed")
        assert fit(world, folder / "moved", stop_after=3) is None
        return found

    both = run_ranks(cases, 2)
    assert both[0] == both[1]
    found = {**both[0], "one": fit(World.single(), folder / "one"), "moved": fit(World.single(), folder / "moved")}
    (folder / "found.json").write_text(json.dumps(found))
    return folder


@pytest.fixture
def found(folder):
    """What each run came to."""
    return json.loads((folder / "found.json").read_text())


def test_two_ranks_come_to_what_one_does(folder, found):
    """Sharded over two ranks in two micro-batches each: losses, norms, weights and perplexity as on one, in float32."""
    one, two = logged(folder / "one"), logged(folder / "whole")
    assert list(one) == list(two) == list(range(1, 7))
    for name in ("loss", "grad_norm"):
        assert [two[step][name] for step in two] == pytest.approx([one[step][name] for step in one], rel=1e-4)
    torch.testing.assert_close(weights(folder / "whole"), weights(folder / "one"), rtol=1e-3, atol=1e-4)
    assert math.exp(found["whole"]["val_loss"]) == pytest.approx(math.exp(found["one"]["val_loss"]), rel=1e-4)


def test_a_resumed_run_ends_where_a_whole_one_does(folder, found):
    """Stopped after 3 steps and resumed after 2: to the bit on two ranks, within rounding on one rank."""
    assert found["resumed"] == {**found["whole"], "resumed": 2}
    assert torch.equal(weights(folder / "resumed"), weights(folder / "whole"))
    assert found["moved"]["resumed"] == 2
    assert found["moved"]["val_loss"] == pytest.approx(found["whole"]["val_loss"], rel=1e-4)
    torch.testing.assert_close(weights(folder / "moved"), weights(folder / "whole"), rtol=1e-3, atol=1e-4)


def test_a_mean_of_means_would_be_another_gradient(folder):
    """The first step's norm is that of one backward over all its tokens; means of means lead elsewhere."""
    script = example()
    documents, _ = script.make_documents()
    order = rankwise.Order(documents, batch_size=12, seed=World.single().seed)
    (batch,) = next(iter(DatasetLoader(documents, order=order, collate_fn=list, device=None)))
    by_length = sorted(documents, key=len)  # of any Python's texts: half of them ten times longer than the others
    unequal = [*by_length[:6], *by_length[-6:]]
    assert len(unequal[6]) > 10 * len(unequal[5])

    def num_tokens_of(texts):
        return sum(len(text) - 1 for text in texts)

    def gradient(parts, flat):
        model = script.TokenModel()
        torch.nn.utils.vector_to_parameters(flat, model.parameters())
        for part, divisor in parts:
            (script.step(model, script.pack(part))[0] / divisor).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    torch.manual_seed(0)
    first = torch.nn.utils.parameters_to_vector(script.TokenModel().parameters())
    norm = gradient([(batch.data, num_tokens_of(batch.data))], first.detach()).norm()
    assert logged(folder / "whole")[1]["grad_norm"] == pytest.approx(float(norm), rel=1e-4)

    def relative_error(size):
        """Of the mean of the means over every `size` documents, at the weights after six steps."""
        parts = [unequal[at : at + size] for at in range(0, 12, size)]
        means = [(part, len(parts) * num_tokens_of(part)) for part in parts]
        exact = gradient([(part, num_tokens_of(unequal)) for part in parts], trained)
        return float((gradient(means, trained) - exact).norm() / exact.norm())

    trained = weights(folder / "whole")
    assert relative_error(12) < 1e-5
    assert relative_error(3) > 1  # measured, of the texts of four Pythons: 2.3 to 2.9
    assert relative_error(1) > 1  # 2.4 to 3.0


def test_it_learns_in_half_precision(tmp_path, run_python):
    """As the page says, but shorter: sharded, bf16, two ranks; soon better than knowing how frequent each byte is."""
    how = ["run", "--nproc", "2", TRAIN, "--limit-steps", "20", "--batch-size", "8"]
    said = run_python(tmp_path, "-m", "rankwise", *how)
    texts = [*example().make_documents()[1].texts]
    counts = Counter(byte for text in texts for byte in (*text, 0))
    entropy = -sum(n / counts.total() * math.log(n / counts.total()) for n in counts.values())
    values = json.loads((tmp_path / "runs" / "train" / "finished.json").read_text())["values"]
    assert values["val_loss"] < 0.95 * entropy
    assert f"perplexity {math.exp(values['val_loss']):.2f} a byte" in said
    assert "after 20 steps" in said


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "zero1"])
def test_the_whole_training(tmp_path, run_python, strategy):
    """Four epochs in bf16: perplexity below 13 a byte on text that was held out."""
    said = run_python(tmp_path, "-m", "rankwise", "run", "--nproc", "2", TRAIN, "--strategy", strategy)
    values = json.loads((tmp_path / "runs" / "train" / "finished.json").read_text())["values"]
    assert f"after {values['num_steps']} steps" in said
    assert math.exp(values["val_loss"]) < 13
