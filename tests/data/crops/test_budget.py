"""The memory budget: settled at construction, added up where it does not fit."""

import pytest

import rankwise.data.crops as damacy
from rankwise.data.crops.budget import Caps, host_memory_bytes, stream_budget
from rankwise.data.crops.devices import DevicePlace

MIB = 2**20


def config(**values):
    return damacy.Config(**{"samples_per_batch": 4, "sample_shape": (64, 64, 64), "cache_bytes": 0, **values})


def budget(config, *, host_bytes=2**40, **place):
    caps = {name: getattr(config, name) for name in ("max_gpu_memory_bytes", "max_host_memory_bytes")}
    return stream_budget(config, Caps(place=DevicePlace(device=None, **place), host_memory_bytes=host_bytes, **caps))


def test_a_batch_is_added_up():
    """All fields, masks and dtypes count; native ones as the widest."""
    assert budget(config()).batch_bytes == 4 * MIB
    assert budget(config(dtype="bf16")).batch_bytes == 2 * MIB
    assert budget(config(pad="fill")).batch_bytes == 5 * MIB
    two = config(fields={"seg": damacy.Field(sample_shape=(64, 64, 64), dtype="u8", mask=True)})
    assert budget(two).batch_bytes == 6 * MIB
    assert budget(config(dtype="native")).batch_bytes == 8 * MIB


def test_as_many_buffers_as_fit():
    """As many as asked for; fewer where a cap allows no more; never a byte above it."""
    assert budget(config()).num_slots == 4
    assert budget(config(host_buffer_waves=8)).num_slots == 8
    tight = budget(config(max_gpu_memory_bytes=13 * MIB))
    assert tight.num_slots == 3
    assert tight.ring_bytes <= 13 * MIB
    assert tight.slot_limit_bytes * tight.num_slots <= 13 * MIB
    host = budget(config(max_host_memory_bytes=21 * MIB, cache_bytes=10 * MIB))
    assert host.num_slots == 2
    assert host.host_bytes <= 21 * MIB


def test_ranks_share():
    """A device cap is divided among the ranks that share the GPU, the host's among those of the machine."""
    assert budget(config(max_gpu_memory_bytes=32 * MIB), sharers=4).num_slots == 2
    assert budget(config(max_gpu_memory_bytes=32 * MIB)).num_slots == 4
    assert budget(config(max_host_memory_bytes=32 * MIB), local_world_size=3).num_slots == 2
    assert budget(config(), local_world_size=2, host_bytes=24 * MIB).num_slots == 3


@pytest.mark.parametrize(
    ("values", "place", "needed"),
    [
        ({"max_gpu_memory_bytes": 7 * MIB}, {}, f"max_gpu_memory_bytes={8 * MIB}"),
        ({"max_gpu_memory_bytes": 30 * MIB}, {"sharers": 4}, f"max_gpu_memory_bytes={32 * MIB}"),
        ({"max_host_memory_bytes": 7 * MIB}, {}, f"max_host_memory_bytes={8 * MIB}"),
        ({"max_host_memory_bytes": 9 * MIB, "cache_bytes": 2 * MIB}, {}, "a smaller cache_bytes"),
        ({"transform": lambda f, _k: f, "max_host_memory_bytes": 11 * MIB}, {}, f"max_host_memory_bytes={12 * MIB}"),
        ({}, {"host_bytes": 7 * MIB}, "fewer samples_per_batch"),
    ],
)
def test_what_does_not_fit_is_added_up(values, place, needed):
    """The error shows every part, the caps, and what would do; and what it names does do."""
    with pytest.raises(damacy.BudgetExceeded, match="at least two batches must fit") as caught:
        budget(config(**values), **place)
    text = str(caught.value)
    assert needed in text
    for part in (
        "batches on the device",
        "batch buffers",
        "scratch of transform=",
        "decoded chunks",
        "sum on the host",
    ):
        assert part in text
    name, _, amount = needed.partition("=")
    if amount:
        assert budget(config(**{**values, name: int(amount)}), **place).num_slots >= 2


def test_the_pipeline_keeps_to_it(volume):
    """The cap is refused when the pipeline is made, before the first sample; what is committed is in the statistics."""
    small = {"samples_per_batch": 4, "sample_shape": (4, 8, 8), "device": "cpu"}
    batch = 4 * 4 * 8 * 8 * 4
    with pytest.raises(damacy.BudgetExceeded, match=f"max_gpu_memory_bytes={2 * batch} or more"):
        damacy.Pipeline(damacy.Config(**small, max_gpu_memory_bytes=2 * batch - 1))
    with damacy.Pipeline(damacy.Config(**small, max_gpu_memory_bytes=2 * batch)) as p:
        p.push(volume.samples(20))
        assert len({b.info.device_ptr for b in p}) <= 2
        assert p.stats().gpu_bytes_committed == 2 * batch


def test_the_memory_of_a_container_counts(tmp_path):
    """The limit of the container, where it is lower than the machine's memory."""
    limit = tmp_path / "memory.max"
    limit.write_text("123456\n")
    assert host_memory_bytes(limit) == 123456
    limit.write_text("max\n")
    assert host_memory_bytes(limit) == host_memory_bytes(tmp_path / "not") > 123456
