"""`rankwise verify`: a right script passes, also killed; each classic bug is found, with its reason and its place."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.diagnose import Verdict, verify_script
from rankwise.diagnose.comparison import Run, check_one_run, compare_runs, tensors_apart
from rankwise.errors import ConfigError

SCRIPTS = Path(__file__).parent / "scripts"


def command(*words):
    done = subprocess.run(
        [sys.executable, "-m", "rankwise", "verify", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("numbers", "last"), [("1", "1 rank"), pytest.param("1,2", "2 ranks", marks=pytest.mark.slow)])
def test_a_right_script_passes_also_killed(numbers, last):
    """A plain DDP script, at one and two ranks, and with a rank killed in mid-run: exit code 0, in words."""
    code, out, err = command("--ranks", numbers, "--kill", "--steps", "5", "--json", SCRIPTS / "plain.py")
    verdict = json.loads(out)
    assert (code, verdict["same"], verdict["findings"]) == (0, True, []), err
    *against, killed = verdict["agreement"]
    assert len(against) == numbers.count(",")
    assert all(line.startswith("2 ranks against 1 rank: 5 steps, the same samples, loss ") for line in against)
    assert killed == f"{last} with a kill at step 3: started again, as nothing had been saved, bits"


OBSERVED = """
import sys
from rankwise.diagnose import torch_hooks
torch_hooks.let_gloo_finish = lambda: print("gloo rests", dist.is_initialized())
import torch.distributed as dist
sys.argv = ["recorder", "own.py"]
torch_hooks.run_script(lambda: print("recorded", dist.is_initialized()))
"""


def test_gloo_rests_before_an_observed_script_frees_its_group(tmp_path):
    """Freeing waits for gloo's threads with the interpreter's lock, and one that ends a collective may need that."""
    store = f"store=dist.FileStore({str(tmp_path / 'store')!r}, 1), rank=0, world_size=1"
    start = f'import torch.distributed as dist\ndist.init_process_group("gloo", {store})\n'
    (tmp_path / "own.py").write_text(start + "dist.destroy_process_group()\n")
    done = subprocess.run(
        [sys.executable, "-c", OBSERVED], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout.split("\n") == ["gloo rests True", "recorded False", ""]


@pytest.mark.parametrize(
    ("bugs", "wanted"),
    [
        (
            "no_set_epoch,padded_evaluation,unsynchronised_move",
            [
                (
                    "replicas",
                    0,
                    "the gradient of 0.weight on rank 1 differs from that of rank 0",
                    "created after the wrap",
                ),
                ("epoch order", 3, "pass 1 over loader 0 has the same order as the pass before", "set_epoch"),
                ("evaluation", 3, "counted more than once in pass 0 over loader 1: sample 11", "repeats samples"),
            ],
        ),
        (
            "rank_dependent_split",
            [
                (
                    "split",
                    0,
                    "used for training on one rank and held out on another: samples 11, 27",
                    "depends on the rank",
                ),
                ("samples", 0, "used for training on both rank 0 and rank 1: sample 14", "not divided among"),
            ],
        ),
    ],
)
def test_each_classic_bug_is_found(bugs, wanted, tmp_path):
    """The finding says step, parameter or sample, and the reason. A mean of means is in test_stages and test_broken."""
    verdict = verify_script(str(SCRIPTS / "plain.py"), ["--bugs", bugs], ranks=(2,), folder=tmp_path)
    assert verdict.exitcode == 1
    for found, (what, step, text, reason) in zip(verdict.findings, wanted, strict=True):
        assert (found.run, found.what, found.step) == ("2 ranks", what, step)
        assert text in found.text
        assert reason in found.reason
        assert found.text in str(verdict)


def test_a_script_that_fails_is_no_comparison():
    """Exit code 2, with the script's own words; so are arguments that cannot work."""
    code, out, _ = command("--ranks", "1,2", SCRIPTS / "failing.py")
    assert code == 2
    assert "1 rank: failed" in out
    assert "no data here" in out
    code, _, err = command("--ranks", "one", SCRIPTS / "plain.py")
    assert (code, "--ranks must be numbers separated by commas, such as 1,2,3" in err) == (2, True)
    with pytest.raises(ConfigError, match=r"each at least 1, got \[0, 2\]"):
        verify_script("plain.py", ranks=[0, 2], folder=Path("nowhere"))


def made_run(name, ids, *, loss=1.0, grad=1.0, dtype="float64", layers=(), autocast=""):
    """A run of one step over `ids`, a list for each rank."""
    model = {"kind": "model", "step": 0, "layers": list(layers), "late": [], "wrapped": True, "dtype": dtype}
    model["autocast"] = autocast
    lines = [
        [
            model,
            {
                "kind": "step",
                "step": 0,
                "ids": mine,
                "losses": [[loss, None]],
                "before": "state",
                "grads": {"weight": [f"digest {grad}", grad, [grad]]},
                "params": {"weight": ["digest", 2.0, [2.0]]},
                "forwards": 1,
            },
        ]
        for mine in ids
    ]
    return Run(name, len(ids), lines)


@pytest.mark.parametrize(
    ("new", "tolerance", "what", "reason"),
    [
        ({"ids": [[1, 2], [3, 4]]}, None, None, ""),
        ({"ids": [[1, 2], [3, 4]], "grad": 1 + 1e-12}, None, None, ""),
        ({"ids": [[1, 2], [3, 4]], "grad": 1 + 1e-6}, None, "gradients", "mean of means: each rank divides"),
        ({"ids": [[1, 2], [3, 4]], "grad": 1 + 1e-6}, 1e-5, None, ""),
        ({"ids": [[1, 2], [3, 4]], "grad": 1 + 1e-3, "autocast": "bfloat16"}, None, None, ""),
        ({"ids": [[1], [2, 3, 4]], "grad": 1.5, "autocast": "bfloat16"}, None, "gradients", "the ranks have"),
        ({"ids": [[1], [2, 3, 4]], "grad": 1.5}, None, "gradients", "the ranks have [1, 3] samples"),
        ({"ids": [[1, 2], [3, 4]], "grad": 1.5, "layers": ["BatchNorm2d"]}, None, "gradients", "BatchNorm2d sees one"),
        ({"ids": [[1, 2], [3, 4]], "loss": 1.5, "layers": ["Dropout"]}, None, "loss", "draws its own mask"),
        ({"ids": [[1, 2, 3, 4], [5, 6, 7, 8]]}, None, "samples", "the global batch grows with the number of ranks"),
        ({"ids": [[1, 2], [3, 3]]}, None, "samples", "repeats samples"),
    ],
)
def test_rounding_is_told_from_bugs(new, tolerance, what, reason):
    """By the dtype or the tolerance that is given; and what differs says what makes such a difference."""
    verdict = Verdict()
    one_rank = made_run("1 rank", [[1, 2, 3, 4]], autocast=new.get("autocast", ""))
    compare_runs(one_rank, made_run("2 ranks", **new), tolerance, verdict)
    assert [found.what for found in verdict.findings] == ([] if what is None else [what])
    if what is None:
        grad = new.get("grad", 1.0)
        assert f"gradients {'bits' if grad == 1 else 'rounding'}" in verdict.agreement[0]
        assert verdict.agreement[0].endswith("under autocast to bfloat16") == ("autocast" in new)
    else:
        assert reason in verdict.findings[0].reason


WRITTEN = {"digits": "write_store(Path('digits.zarr'))", "cells": "write_collection(Path('cells.zarr'))"}
WRITTEN |= {"volumes": "write_store(Path('volumes.zarr'))"}
EXAMPLES = {
    "digits": ("--ranks", "1,2,3", "--kill", "--steps", 36, "digits/train.py", "--store", "digits.zarr", "--epochs", 2),
    "own loop": ("own_loop/train.py", "--store", "digits.zarr", "--epochs", 1, "--run-dir", "{dir}"),
    "tokens": ("--steps", 8, "tokens/train.py", "--limit-steps", 8),  # as they are: fsdp, bf16
    "cells": ("cells/train.py", "--collection", "cells.zarr", "--epochs", 2, "--float64"),
    "volumes": ("--ranks", "1,3", "volumes/train.py", "--store", "volumes.zarr", "--epochs", 1),
}
TOLD = {"digits": "continued from step 23, bits", "tokens": "under autocast to bfloat16"}


@pytest.mark.slow
def test_the_examples_pass(tmp_path, run_python, monkeypatch):
    """All that train, at several numbers of ranks; one also killed."""
    examples = Path(__file__).parents[2] / "examples"
    for name, write in WRITTEN.items():
        found = f"import sys; sys.path.insert(0, {str(examples / name)!r}); from pathlib import Path; import data; "
        run_python(tmp_path, "-c", found + "data." + write)
    monkeypatch.chdir(tmp_path)
    for name, words in EXAMPLES.items():
        ranks = () if "--ranks" in words else ("--ranks", "1,2")
        given = [examples / word if str(word).endswith(".py") else word for word in words]
        code, out, err = command(*ranks, *given)
        assert code == 0, name + out + err
        assert TOLD.get(name, "the same training") in out


def test_bits_are_equal_digests_alone():
    """Also where neither the norm nor one of the values that are kept shows the difference."""
    kept = (2.0, [1.0, -1.0])
    assert tensors_apart({"w": ("one", *kept)}, {"w": ("one", *kept)})[1] == 0
    name, apart = tensors_apart({"w": ("one", *kept)}, {"w": ("other", *kept)})
    assert name == "w"
    assert 0 < apart < 1e-16
    assert 0 < tensors_apart({"w": ("one", 0.0, [0.0])}, {"w": ("other", 0.0, [-0.0])})[1] < 1e-16  # a zero's sign
    assert tensors_apart({"w": ("one", 0.0, [0.0])}, {"w": ("other", 1.0, [1.0])})[1] == float("inf")


def test_a_model_that_depends_on_the_number_of_ranks():
    """Tensors of different shapes are apart, however few values they have."""
    name, apart = tensors_apart({"w": ("one", 1.0, [1.0])}, {"w": ("other", 1.0, [0.6, 0.8])})
    assert (name, apart) == ("w (of another shape)", float("inf"))


def test_an_evaluation_without_rank_0():
    """Samples that other ranks count twice are found, though rank 0 has seen none."""
    run = made_run("3 ranks", [[1], [2], [3]])
    for rank, ids in ((1, [7, 8]), (2, [8, 9])):
        run.lines[rank] += [{"kind": "look", "step": 1, "loader": 1, "turn": 0, "ids": ids}]
    (found,) = check_one_run(run)
    assert (found.what, found.step, "sample 8" in found.text) == ("evaluation", 1, True)


ODD = """
import torch
from torch.utils.data import DataLoader, Dataset

class Labelled(Dataset):
    indices = {"train": "all"}  # what it means by this is its own affair
    dataset = "of flowers"
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.full((2,), float(index))

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD([{"params": []}, {"params": model.parameters()}], lr=0.1)
for batch in DataLoader(Labelled(), batch_size=4):
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
"""


def test_an_odd_script_runs_as_it_does_alone(tmp_path):
    """A group without parameters, a data set whose attributes have names of torch's: no matter for the recorder."""
    (tmp_path / "odd.py").write_text(ODD)
    verdict = verify_script(str(tmp_path / "odd.py"), ranks=(1,), steps=2, folder=tmp_path / "runs")
    assert verdict.findings == []
