"""The memory of batches of an index is settled before the first one is read."""

import threading
import warnings

import numpy as np
import pytest

import rankwise.data.crops as damacy
from rankwise import Order
from rankwise.data.crops import CropIndex, Foreground, IndexPipeline, Stage, Take
from rankwise.data.crops.devices import DevicePlace
from rankwise.errors import ConfigError
from rankwise.launch.hardware import Topology

CROP = 8 * 8 * 8 * 4
CACHE = 1000


@pytest.fixture
def budget(monkeypatch):
    """Return what a pipeline plans on a machine with so many ranks and devices."""

    def planned(index, *, device=None, host=10**9, sharers=1, local_ranks=1, world_size=2, batch_size=12, **more):
        place = DevicePlace(device=None, sharers=sharers, local_world_size=local_ranks, world_size=world_size)
        monkeypatch.setattr("rankwise.data.crops.index.pipeline.place_in_world", lambda *_: place)
        options = {"micro_batch": 4, "depth": 2, "cache": CACHE, "device": None, **more}
        options |= {"max_gpu_memory_bytes": device, "max_host_memory_bytes": host}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the cache is small
            with IndexPipeline(index, order=Order(index, batch_size=batch_size), **options) as pipeline:
                return pipeline.budget

    return planned


@pytest.fixture(scope="module")
def index(volumes):
    return CropIndex([image["image"] for image in volumes.images], shape=(8, 8, 8))


def test_all_steps_that_are_held_count(index, budget):
    """Two steps ready and one in use; each rank's half of 12 crops comes in two batches of three."""
    found = budget(index)
    assert (found.batch_bytes, found.num_slots) == (3 * CROP, 6)
    assert found.host_bytes == 18 * CROP + CACHE
    assert budget(index, depth=0).ring_bytes == 12 * CROP  # one is read while the last one is looked at
    assert budget(index, transform=lambda fields, _key: fields).host_bytes == 21 * CROP + CACHE
    assert budget(index, world_size=1, micro_batch=None).batch_bytes == 12 * CROP


def test_masks_labels_and_stages_count(volumes, budget):
    """A crop is as large as all that is read of it, in the largest stage."""
    options = {"num_random": 64, "foreground": Foreground("label", 0.5), "labels": {"n": lambda _: [1.0, 2.0]}}
    fields = {"image": Take(pad="fill", mask=True), "label": Take()}
    stages = {0: Stage(shape=(4, 4, 4)), 3: Stage(shape=(8, 8, 8))}
    index = CropIndex(volumes.images, shape=(8, 8, 8), fields=fields, curriculum=stages, **options)
    assert budget(index).batch_bytes == 3 * (512 * (4 + 1 + 1) + 2 * 8)
    assert budget(index, fields=["label"]).batch_bytes == 3 * 512


@pytest.mark.parametrize(
    ("place", "needed"),
    [
        ({"host": 18 * CROP + CACHE - 1}, f"max_host_memory_bytes={18 * CROP + CACHE}"),
        ({"host": 18 * CROP, "local_ranks": 2}, f"max_host_memory_bytes={2 * (18 * CROP + CACHE)}"),
        ({"device": 18 * CROP - 1}, f"max_gpu_memory_bytes={18 * CROP}"),
        ({"device": 18 * CROP, "sharers": 4}, f"max_gpu_memory_bytes={4 * 18 * CROP}"),
    ],
)
def test_what_does_not_fit_is_added_up(index, budget, place, needed):
    """The error shows every part and its cap, divided among the ranks, and names a size that does fit."""
    with pytest.raises(damacy.BudgetExceeded, match="3 steps of 2 batches of 3 crops must fit") as caught:
        budget(index, **place)
    text = str(caught.value)
    assert needed in text
    for part in ("batches on the device", "decoded chunks", "sum on the host", "a smaller depth", "a smaller cache"):
        assert part in text
    name, _, amount = needed.partition("=")
    mended = {"host" if "host" in name else "device": int(amount)}
    assert budget(index, **{**place, **mended}).num_slots == 6


def test_the_pipeline_keeps_to_it(index):
    """A cap is refused when the pipeline is made; a transform that makes crops larger meets it, and is told so."""
    order = Order(index, batch_size=4)
    needed = 3 * 4 * CROP
    options = {"order": order, "device": None, "cache": 0}
    with pytest.raises(damacy.BudgetExceeded, match=f"max_host_memory_bytes={needed} or more"):
        IndexPipeline(index, **options, max_host_memory_bytes=needed - 1)
    with IndexPipeline(index, **options, max_host_memory_bytes=needed) as pipeline:
        assert pipeline.budget.host_bytes == needed
        assert sum(len(batch.ids) for step in pipeline for batch in step) == len(index)

    def enlarged(fields, _key):
        return {"image": np.zeros((9, 9, 9), fields["image"].dtype)}

    with (
        IndexPipeline(index, **options, max_host_memory_bytes=needed + 4 * CROP, transform=enlarged) as pipeline,
        pytest.raises(ConfigError, match="a batch buffer may use"),
    ):
        next(iter(pipeline))
    with pytest.raises(damacy.InvalidArgument, match="max_gpu_memory_bytes must be an integer of at least 1"):
        IndexPipeline(index, **options, max_gpu_memory_bytes=0)


def test_the_readers_thread_goes_to_its_cores(index, monkeypatch):
    """NUMA strategies hold here too: the thread that reads is bound before it reads, the caller's is left alone."""
    from rankwise.data.crops import devices

    bound = []
    monkeypatch.setattr(devices, "pin_thread", lambda given: bound.append((threading.current_thread().name, given)))
    nodes = {0: (0, 1), 1: (2, 3)}
    monkeypatch.setattr(devices, "read_topology", lambda: Topology(nodes=nodes, siblings={}))
    options = {"order": Order(index, batch_size=4), "device": None}
    with IndexPipeline(index, **options, numa_strategy=damacy.NumaStrategy.PIN_TO, numa_node=1) as pipeline:
        next(iter(pipeline))
    assert bound == [("rankwise-reader", frozenset({2, 3}))]
    with pytest.raises(damacy.InvalidArgument, match="numa_node must be the node for"):
        IndexPipeline(index, **options, numa_node=1)


def test_a_device_of_ones_own_choice_is_checked(index):
    """As for pushed samples: a device that is not there is refused when the pipeline is made."""
    with pytest.raises(damacy.InvalidArgument, match="check CUDA_VISIBLE_DEVICES"):
        IndexPipeline(index, order=Order(index, batch_size=4), device="cuda:77")


def test_numpy_arrays_need_no_torch(index, monkeypatch):
    """Without torch the launcher's variables say which part is this rank's."""
    from rankwise.data.crops import devices

    monkeypatch.setattr(devices, "find_spec", lambda _name: None)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    with IndexPipeline(index, order=Order(index, batch_size=4), device=None) as pipeline:
        (batch,) = next(iter(pipeline))
        assert (batch.share.rank, batch.share.world_size, len(batch.ids)) == (1, 2, 2)
