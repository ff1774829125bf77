"""Split a step of one rank into parts: every nanosecond of its wall time belongs to exactly one part."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

from rankwise.diagnose.profile.intervals import Spans, clip, intersect, length, subtract, unite
from rankwise.diagnose.profile.trace import Collective, Trace

PARTS = ("data", "h2d", "forward", "backward", "wait", "transfer", "optimizer", "other")
_GRADIENTS = {"all_reduce", "reduce_scatter", "allreduce", "_reduce_scatter_base", "reduce_scatter_tensor"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Activities of a rank's host; disjoint spans, time outside of them is "other".

    Attributes:
        data: waiting for the next batch.
        h2d: in `to` and `copy_` calls that copied to a GPU.
        forward: from the arrival of the batch, or the start of DDP's forward, to the backward pass; includes the loss.
        backward: in the backward pass, including its wait for the last bucket.
        optimizer: in an optimizer step.
        compute: in an operator, except in one that waited for a collective.
    """

    data: Spans
    h2d: Spans
    forward: Spans
    backward: Spans
    optimizer: Spans
    compute: Spans

    def at(self, moment: int) -> str:
        """Return the host's activity at a time."""
        for name in ("data", "optimizer", "h2d", "backward", "forward"):
            spans = getattr(self, name)
            place = bisect_right(spans, moment, key=lambda span: span[0]) - 1
            if place >= 0 and moment < spans[place][1]:
                return name
        return "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """One step of one rank.

    Attributes:
        number: number of the step.
        wall: its wall time, nanoseconds.
        parts: nanoseconds of each of `PARTS`; their sum is `wall`.
        ready: nanoseconds from its start to the first gradient bucket, without waits for other ranks; None without one.
        comm: nanoseconds with a running collective, hidden behind compute or not.
        idle: nanoseconds in which the GPU was idle between the request for data and the end; 0 on a CPU.
        num_kernels: number of compute kernels that began in it.
    """

    number: int
    wall: int
    parts: dict[str, int]
    ready: int | None
    comm: int
    idle: int
    num_kernels: int


def find_phases(trace: Trace) -> Phases:
    """Return the host's activities from a trace, with or without rankwise's annotations."""
    data = unite(trace.annotations["data"])
    optimizer = subtract(unite(trace.annotations["optimizer"]), data)
    threads = {trace.main, *(thread for thread, _, _ in trace.autograd)}
    backward = subtract(_backwards(trace), unite([*data, *optimizer]))
    forward = _forwards(trace, backward, unite([*data, *optimizer]))
    h2d: Spans = []
    if trace.uploads:
        asked = sorted(copy.launched for copy in trace.uploads)
        copies = [(a, b) for thread, a, b in trace.copies if thread == trace.main and _holds(asked, a, b)]
        h2d = subtract(unite(copies), data)
    return Phases(
        data=data,
        h2d=h2d,
        forward=subtract(forward, h2d),
        backward=subtract(backward, h2d),
        optimizer=optimizer,
        compute=unite(span for op in trace.ops if op[0] in threads for span in _computing(trace, *op)),
    )


def _computing(trace: Trace, thread: Any, start: int, end: int) -> Spans:
    """Return when an operator computed, but for those inside it.

    While a collective is under way that it asked for and that ends before it does, it waits for that: so does a node of
    the backward whose hook calls one. A collective that outlasts it was not waited for.
    """
    asked = trace.asked.get(thread, [])
    place = bisect_left(asked, start)
    if place == len(asked) or asked[place] >= end:
        return [(start, end)]
    first = bisect_left(trace.collectives, asked[place], key=lambda found: found.start)
    last = bisect_left(trace.collectives, end, key=lambda found: found.start)
    waited = unite((found.start, found.end) for found in trace.collectives[first:last] if found.end <= end)
    return subtract([(start, end)], waited)


def _holds(moments: list[int], start: int, end: int) -> bool:
    place = bisect_right(moments, start - 1)
    return place < len(moments) and moments[place] < end


def _backwards(trace: Trace) -> Spans:
    """Return the backward passes: as annotated, else from the first node to the last node or awaited bucket."""
    if trace.annotations["backward"]:
        return unite(trace.annotations["backward"])
    nodes = unite((a, b) for _, a, b in trace.autograd)
    # the start of another activity ends a backward pass; recorded operators inside nodes belong to the nodes
    breaks = sorted(
        start
        for start in [
            *(a for kind in ("data", "optimizer", "forward") for a, _ in trace.annotations[kind]),
            *(a for thread, a in trace.recorded if thread == trace.main and not clip(nodes, a, a + 1)),
            *(a for _, a, _ in trace.steps),
        ]
    )
    found: Spans = []
    for start, end in nodes:
        if found and not _holds(breaks, found[-1][1], start):
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    if trace.on_gpu:
        return found
    longer = []
    for start, end in found:
        after = bisect_right(breaks, end)
        limit = breaks[after] if after < len(breaks) else end
        ends = [c.end for c in trace.collectives if start <= c.start < end]
        longer.append((start, max(end, min(limit, max(ends, default=end)))))
    return unite(longer)


def _forwards(trace: Trace, backward: Spans, taken: Spans) -> Spans:
    """Return the span of the forward pass before each backward pass."""
    wrapped = sorted(a for a, _ in trace.annotations["forward"])
    data_ends = [end for _, end in taken]
    edges = sorted(start for _, start, _ in trace.steps)
    found = []
    before = edges[0]
    for start, end in backward:
        # a step boundary between them ends the earlier span
        begun = edges[max(0, bisect_right(edges, start) - 1)]
        first = max(before, begun)
        place = bisect_right(wrapped, first - 1)
        if place < len(wrapped) and wrapped[place] < start:
            found.append((wrapped[place], start))
        else:
            last = bisect_right(data_ends, start) - 1
            found.append((max(first, data_ends[last]) if last >= 0 else first, start))
        before = end
    return subtract(unite(found), unite([*taken, *backward]))


def split_steps(trace: Trace, phases: Phases) -> list[StepParts]:
    """Split every step. Counted in this order: waiting for data, exposed communication, the host's activities.

    On a GPU the time of a kernel belongs to the part in which the host launched it. Idle time of the GPU belongs to the
    host's activity at that time.
    """
    computing = unite((k.start, k.end) for k in trace.kernels) if trace.on_gpu else phases.compute
    comm = unite((c.start, c.end) for c in trace.collectives)
    moved = unite((c.start + c.wait, c.end) for c in trace.collectives)
    exposed = subtract(comm, computing if trace.on_gpu else unite([*computing, *phases.data]))
    layers: list[tuple[str, Spans]] = [("transfer", intersect(exposed, moved)), ("wait", subtract(exposed, moved))]
    if trace.on_gpu:
        launched: dict[str, Spans] = {}
        for kernel in trace.kernels:
            launched.setdefault(phases.at(kernel.launched), []).append((kernel.start, kernel.end))
        layers += [(name, unite(launched.get(name, []))) for name in ("optimizer", "backward", "forward", "h2d")]
        layers += [("data", unite(launched.get("data", []))), ("other", unite(launched.get("other", [])))]
        layers.append(("h2d", unite((copy.start, copy.end) for copy in trace.uploads)))
    layers += [(name, getattr(phases, name)) for name in ("data", "optimizer", "h2d", "backward", "forward")]
    kernel_starts = sorted(k.start for k in trace.kernels)
    busy = unite([*computing, *comm, *((copy.start, copy.end) for copy in trace.uploads)])
    found = []
    for number, start, end in trace.steps:
        left: Spans = [(start, end)]
        parts = dict.fromkeys(PARTS, 0)
        for name, spans in layers:
            mine = clip(spans, start, end)
            parts[name] += length(intersect(left, mine))
            left = subtract(left, mine)
        parts["other"] += length(left)
        idle = end - start - length(clip(busy, start, end)) - length(subtract(clip(phases.data, start, end), busy))
        found.append(
            StepParts(
                number=number,
                wall=end - start,
                parts=parts,
                ready=_ready(trace, phases, start, end),
                comm=length(clip(comm, start, end)),
                idle=idle if trace.on_gpu else 0,
                num_kernels=bisect_right(kernel_starts, end - 1) - bisect_right(kernel_starts, start - 1),
            )
        )
    return found


def _ready(trace: Trace, phases: Phases, start: int, end: int) -> int | None:
    """Return when the first gradient bucket was ready, without earlier waits for other ranks."""
    waited: Spans = []
    for found in trace.collectives:
        if start <= found.start < end:
            if is_gradient(found) and phases.at(found.launched) == "backward":
                return found.start - start - length(clip(unite(waited), start, found.start))
            waited.append((found.start, found.start + found.wait))
    return None


def is_gradient(found: Collective) -> bool:
    """Whether a collective's operation may be a gradient reduction."""
    return found.name in _GRADIENTS
