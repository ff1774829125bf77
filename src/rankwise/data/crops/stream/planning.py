"""The second thread of a stream: from the samples of a batch to how it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rankwise.data.contract import DType
from rankwise.data.crops.config import Config
from rankwise.data.crops.dtypes import Dtype, parse_dtype, resolved_dtype
from rankwise.data.crops.exceptions import DamacyError, DtypeMismatch, InvalidSample
from rankwise.data.crops.reading import CropField, CropReader
from rankwise.data.crops.stats import Meters
from rankwise.data.crops.stream.flow import Flow, Group
from rankwise.data.crops.stream.opening import Openings
from rankwise.data.crops.stream.resolving import ArrayBoxes, grouped, resolve
from rankwise.data.crops.stream.work import Numbered, Work
from rankwise.data.store.reader import BoxReader

__all__ = ["Planner"]


class Planner:
    """Plans until the flow is closed.

    Args:
        flow: where samples come from and plans go.
        config: the configuration.
        openings: opened arrays.
        engine: reads boxes.
        meters: times the planning.
    """

    def __init__(
        self, flow: Flow[Numbered, Work, Any], config: Config, openings: Openings, engine: BoxReader, meters: Meters
    ) -> None:
        self._flow = flow
        self._config = config
        self._openings = openings
        self._engine = engine
        self._meters = meters
        self._native: dict[str, tuple[DType, str]] = {}
        self._reader: CropReader | None = None

    def run(self) -> None:
        """Body of the thread."""
        while (group := self._flow.take_group()) is not None:
            try:
                with self._meters.time("plan"):
                    work = self._work(group)
                if work.plan is not None and work.reader is not None:
                    work.reader.hint([work.plan])
            except BaseException as error:  # noqa: BLE001  (raised where the consumer meets it)
                items = tuple(group.items)
                work = Work(items=items, reader=None, plan=None, failed=(), errors=(*group.errors, error))
            if not self._flow.put_plan(work):
                return

    def _work(self, group: Group[Numbered]) -> Work:
        resolved: dict[int, Mapping[str, ArrayBoxes]] = {}
        failed: dict[int, DamacyError] = {}
        for row, item in enumerate(group.items):
            try:
                resolved[row] = self._resolved(item)
            except DamacyError as error:
                failed[row] = error
        items, errors = tuple(group.items), tuple(group.errors)
        if not resolved:
            return Work(items=items, reader=None, plan=None, failed=tuple(failed.values()), errors=errors)
        reader = self._reader = self._reader or self._make_reader()
        ids = np.array([item.number for item in items], dtype=np.int64)
        plan = reader.plan(grouped(resolved, list(reader.fields)), ids=ids, failed=failed)
        return Work(items=items, reader=reader, plan=plan, failed=(), errors=errors)

    def _resolved(self, item: Numbered) -> dict[str, ArrayBoxes]:
        if item.error is not None:
            raise item.error
        if item.sample is None:
            raise InvalidSample(f"sample {item.number} is none", sample=item.number)
        boxes = resolve(item.sample, item.number, self._config, self._openings)
        for name, each in boxes.items():
            self._check_native(name, each, item.number)
        return boxes

    def _check_native(self, name: str, boxes: ArrayBoxes, number: int) -> None:
        """The first array decides what native means."""
        if parse_dtype(self._config.all_fields[name].dtype) is not Dtype.NATIVE:
            return
        array = boxes.array
        dtype, first = self._native.setdefault(name, (array.dtype, array.place))
        if dtype != array.dtype:
            raise DtypeMismatch(
                f"sample {number} cannot be read: field {name!r} has the native dtype, which is {dtype} since {first}; "
                f"{array.place} holds {array.dtype}: say the dtype that batches shall have",
                uri=array.place,
                sample=number,
            )

    def _make_reader(self) -> CropReader:
        fields = {}
        for name, field in self._config.all_fields.items():
            native = self._native.get(name)
            fields[name] = CropField(
                shape=tuple(field.sample_shape),
                dtype=resolved_dtype(parse_dtype(field.dtype), None if native is None else native[0]),
                pad=field.pad,
                normalise=field.normalise,
                mask=field.pad is not None if field.mask is None else field.mask,
            )
        return CropReader(fields, reader=self._engine)
