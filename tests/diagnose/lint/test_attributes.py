"""RW221 knows every public attribute that DistributedDataParallel has of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rankwise.diagnose.lint.rules.wraps.passes import OWN

torch = pytest.importorskip("torch")


@pytest.fixture
def group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_what_ddp_has_is_known(group: None) -> None:
    """A name that is missing here would be a false alarm."""
    wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    assert {name for name in dir(wrapped) if not name.startswith("_")} - OWN == set()
