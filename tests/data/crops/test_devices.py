"""Device binding: one mind about the device, or an error; a warning where ranks may share one by accident."""

import warnings

import pytest
import torch

from rankwise.data.crops import InvalidArgument, devices
from rankwise.data.crops.devices import CudaFacts, bind_device
from rankwise.errors import MissingExtraError

RANK_1 = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "1",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_said():
    devices._warn_once.cache_clear()


def bind(wanted=None, environ=(), count=0, current=None):
    return bind_device(wanted, environ=dict(environ), cuda=CudaFacts(count=count, current=current))


def test_without_cuda_it_is_the_cpu():
    """None takes what is there; NumPy arrays on request."""
    assert bind().device == torch.device("cpu")
    assert bind("cpu", count=4, current=2).device == torch.device("cpu")
    assert bind("numpy").device is None
    assert bind("meta").device == torch.device("meta")


def test_the_rank_comes_from_the_launcher():
    """Global rank and ranks of this machine, also before a process group is there."""
    place = bind("cpu", RANK_1)
    assert (place.rank, place.local_world_size, place.sharers) == (5, 4, 1)
    assert bind("numpy", {"LOCAL_RANK": "1"}).rank == 0


def test_none_is_the_device_in_use():
    """The device that the process works on; else that of the local rank; else the first one."""
    assert bind(count=1).device == torch.device("cuda", 0)
    assert bind(None, RANK_1, count=4).device == torch.device("cuda", 1)
    with pytest.warns(UserWarning, match="LOCAL_RANK is 1 but the pipeline feeds CUDA device 3"):
        assert bind(None, RANK_1, count=4, current=3).device == torch.device("cuda", 3)


def test_a_number_is_a_cuda_device():
    """It must be there, and must be the one that the process works on already."""
    assert bind(2, {"LOCAL_RANK": "2"}, count=4).device == torch.device("cuda", 2)
    assert bind("cuda:1", RANK_1, count=4, current=1).device == torch.device("cuda", 1)
    with pytest.raises(InvalidArgument, match="device=0 is CUDA device 0, this process sees 0"):
        bind(0)
    with pytest.raises(InvalidArgument, match="this process sees 2"):
        bind(2, count=2)
    with pytest.raises(InvalidArgument, match=r"Config.device=1 but the process already uses CUDA device 0"):
        bind(1, count=2, current=0)
    with pytest.raises(InvalidArgument, match="device must be the number"):
        bind("gpu")


def test_a_device_that_is_not_the_local_ranks_is_said_once():
    """Also when it was chosen explicitly: device=0 on all ranks is the mistake to catch."""
    with pytest.warns(UserWarning, match="LOCAL_RANK is 1 but the pipeline feeds CUDA device 0"):
        bind(0, RANK_1, count=4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        bound = bind(0, RANK_1, count=4), bind(0, RANK_1, count=1)  # the launcher shows each rank its own device
    assert [place.device for place in bound] == [torch.device("cuda", 0)] * 2
    assert said == []


def test_several_devices_and_no_choice_is_said_once():
    """On a machine with several GPUs a pipeline that was told nothing says which one it takes."""
    with pytest.warns(UserWarning, match="sees 4 CUDA devices, but none was chosen"):
        bind(count=4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        bound = bind(count=4), bind(0, count=4)
    assert [place.device for place in bound] == [torch.device("cuda", 0)] * 2
    assert said == []


def test_ranks_that_share_a_device_are_counted():
    """More ranks than devices on a machine share them."""
    environ = {**RANK_1, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
    assert bind(1, environ, count=4).sharers == 2
    assert bind(1, environ, count=8).sharers == 1


def test_without_torch(monkeypatch):
    """NumPy arrays need no torch; a device does, and the error names the extra."""
    monkeypatch.setattr(devices, "find_spec", lambda _name: None)
    assert bind_device(None, environ=RANK_1).device is None
    assert bind_device("numpy", environ=RANK_1).rank == 5
    with pytest.raises(MissingExtraError, match=r"rankwise\[train\]"):
        bind_device("cpu", environ={})
