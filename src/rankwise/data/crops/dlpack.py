"""The DLPack side of a batch: its crops as NumPy, torch and JAX take them over, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rankwise.data.contract import NDArray

__all__ = ["dlpack_capsule", "dlpack_device"]


def dlpack_device(values: Any) -> tuple[int, int]:
    """Return ``(device type, device number)`` of an array or tensor."""
    kind, number = values.__dlpack_device__()
    return int(kind), int(number)


def dlpack_capsule(values: Any, **wishes: Any) -> Any:
    """Return the capsule of an array or tensor.

    Args:
        values: NumPy array or torch tensor.
        **wishes: ``stream``, ``max_version``, ``dl_device``, ``copy``, as the protocol has them. Those that are None
            are left out, so that producers of the first version of the protocol understand the call.

    Raises:
        BufferError: the values cannot be handed over as wished.
    """
    if isinstance(values, np.ndarray):
        return _numpy_capsule(values, wishes)
    given = {name: wish for name, wish in wishes.items() if wish is not None}
    if values.device.type == "cpu":
        given.pop("stream", None)  # there is nothing to wait for on a CPU, whatever the consumer believes
    return values.__dlpack__(**given)


def _numpy_capsule(array: NDArray, wishes: dict[str, Any]) -> Any:
    if array.dtype.name == "bfloat16":
        raise BufferError(
            "NumPy cannot hand bfloat16 over by DLPack, torch can: install torch and take a batch with device='cpu', "
            'or take dtype="f32"'
        )
    given = {name: wish for name, wish in wishes.items() if wish is not None and name != "stream"}
    try:
        return array.__dlpack__(**given)
    except TypeError:  # NumPy before 2.1 knows the first version of the protocol only
        return array.__dlpack__()
