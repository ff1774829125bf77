"""Choosing the device, with what is visible passed in."""

import pytest

from rankwise.errors import ConfigError, WorldError
from rankwise.world.devices import Visible, choose_device, default_backend, visible_devices

CPU, ONE, FOUR, APPLE = Visible(), Visible(num_cuda=1), Visible(num_cuda=4), Visible(mps=True)


@pytest.mark.parametrize(
    ("request_", "local_rank", "world_size", "visible", "device"),
    [
        ("auto", 0, 1, CPU, "cpu"),
        ("auto", 3, 4, FOUR, "cuda:3"),
        ("auto", 3, 4, ONE, "cuda:0"),
        ("auto", 0, 1, APPLE, "mps"),
        ("auto", 0, 2, APPLE, "cpu"),
        ("cuda", 2, 4, FOUR, "cuda:2"),
        ("cuda:1", 3, 4, FOUR, "cuda:1"),
        ("cpu", 3, 4, FOUR, "cpu"),
        ("mps", 0, 1, APPLE, "mps"),
    ],
)
def test_the_choice(request_, local_rank, world_size, visible, device):
    """The local rank numbers the devices; one visible device is the rank's own; MPS serves one rank."""
    assert choose_device(request_, local_rank=local_rank, world_size=world_size, visible=visible) == device


@pytest.mark.parametrize(
    ("request_", "local_rank", "world_size", "visible", "message"),
    [
        ("auto", 4, 8, FOUR, "local rank 4 needs at least 5 CUDA devices, but this process sees 4"),
        ("cuda:4", 0, 1, FOUR, "device='cuda:4' needs at least 5"),
        ("cuda", 0, 1, CPU, "finds no CUDA device"),
        ("mps", 0, 2, APPLE, "MPS supports one rank, but this world has 2"),
        ("mps", 0, 1, CPU, "finds no MPS device"),
    ],
)
def test_what_is_not_there_is_refused(request_, local_rank, world_size, visible, message):
    """The error counts, and names the mend; nothing falls back silently."""
    with pytest.raises(WorldError, match=message):
        choose_device(request_, local_rank=local_rank, world_size=world_size, visible=visible)


def test_an_unknown_device_is_refused():
    """A typo is an argument error."""
    with pytest.raises(ConfigError, match='"auto", "cpu"'):
        choose_device("gpu", local_rank=0, world_size=1, visible=CPU)


def test_the_backend_follows_the_device():
    """NCCL for CUDA with gloo beside it, gloo otherwise."""
    assert default_backend("cuda:1") == "cpu:gloo,cuda:nccl"
    assert default_backend("cpu") == default_backend("mps") == "gloo"


def test_torch_is_asked():
    """What torch sees on this machine is a valid answer, and device="auto" works with it."""
    visible = visible_devices()
    assert choose_device("auto", local_rank=0, world_size=1, visible=visible)


def test_gpus_that_slurm_has_given_are_not_replaced_by_the_cpu(monkeypatch):
    """The node, what was given and what is seen; not in a shell of salloc, not where nothing was given."""
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_PER_TASK", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    assert visible_devices().expected == ""
    monkeypatch.setenv("SLURM_PROCID", "0")
    visible = visible_devices()
    for wish in ("auto", "cuda"):
        with pytest.raises(
            WorldError, match=r"node .*SLURM_GPUS_ON_NODE=2.*sees none of them.*VISIBLE_DEVICES=not set"
        ):
            choose_device(wish, local_rank=0, world_size=1, visible=visible)
    assert choose_device("cpu", local_rank=0, world_size=1, visible=visible) == "cpu"
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "0")
    assert visible_devices().expected == ""
