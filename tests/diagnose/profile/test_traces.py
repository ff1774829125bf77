"""Traces made by hand, of a GPU and cut in every way: parts add up, the rank that is waited for is named."""

import gzip
import json

import pytest

from rankwise.diagnose.profile import profile_traces
from rankwise.diagnose.profile.parts import PARTS, find_phases, split_steps
from rankwise.diagnose.profile.table import profile_text
from rankwise.diagnose.profile.trace import read_trace
from rankwise.errors import DataError

# The form is Kineto's; the moments are chosen so that the sums are known. No GPU was at hand.


def event(cat, name, start, dur, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": start, "dur": dur, "args": args}


def launch(name, start, correlation, tid=1):
    return event("cuda_runtime", name, start, 5, tid, correlation=correlation, cbid=211)


def flow(correlation, start, end):
    """The arrow from a launch to its kernel, which viewers draw."""
    common = {"cat": "ac2g", "name": "ac2g", "id": correlation, "pid": 7}
    return [{"ph": "s", "ts": start, "tid": 1, **common}, {"ph": "f", "bp": "e", "ts": end, "tid": 7, **common}]


def one_step(number, at, *, late):
    """A step of one millisecond; `late` microseconds more of backward before the gradients are ready."""
    kernels = [
        ("cudaMemcpyAsync", "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 105, 110, 40, 1),
        ("cudaLaunchKernel", "kernel", "ampere_sgemm_128x64_tn", 135, 150, 150, 1),
        ("cudaLaunchKernel", "kernel", "ampere_sgemm_128x64_nt", 210, 300, 200 + late, 2),
        ("cudaLaunchKernelExC", "kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 390, 450 + late, 250 - late, 2),
        ("cudaLaunchKernel", "kernel", "void at::native::multi_tensor_apply_kernel<x>()", 420, 700, 50, 1),
    ]
    events = [
        event("user_annotation", f"ProfilerStep#{number}", at, 1000),
        event("gpu_user_annotation", f"ProfilerStep#{number}", at + 110, 700, tid=20),
        event("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, 100),
        event("cpu_op", "aten::to", at + 100, 20),
        event("user_annotation", "DistributedDataParallel.forward", at + 120, 80),
        event("cpu_op", "aten::mm", at + 130, 20, **{"Sequence number": 3, "Fwd thread id": 0}),
        event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", at + 200, 200, 2, **{"Sequence number": 3}),
        event("user_annotation", "Optimizer.step#SGD.step", at + 400, 50),
    ]
    for place, (call, cat, name, asked, start, dur, tid) in enumerate(kernels):
        correlation = 10 * number + place + 1
        extra = {"In msg nelems": 1000, "dtype": "Float", "Process Group Name": "0"} if "nccl" in name else {}
        events += [
            launch(call, at + asked, correlation, tid),
            event(cat, name, at + start, dur, 7, correlation=correlation, stream=7, device=0, **extra),
            *flow(correlation, at + asked, at + start),
        ]
    return events


def write_trace(path, rank, *, late=0, num_steps=5, shift=0.0, world_size=2):
    """Write the trace of a rank whose clock is `shift` microseconds ahead."""
    events = [e for n in range(num_steps) for e in one_step(n, 1000 + shift + 1000 * n, late=late)]
    text = json.dumps(
        {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100", "numSms": 108}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
            "traceEvents": events,
            "host_name": f"node-{rank}",
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        },
        indent=1,
    )
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)


def gpu_folder(folder, **late):
    for rank in range(2):
        write_trace(folder / f"rank-{rank}.trace.json{'.gz' * rank}", rank, late=late.get(f"rank{rank}", 0))
    return folder


def test_each_moment_of_a_gpu_step_belongs_to_one_part(tmp_path):
    """Kernels count where they were asked for, an idle GPU for what the host does, and all of it is the wall time."""
    profile = profile_traces(gpu_folder(tmp_path, rank1=100))
    us = {rank: {part: round(1000 * ms) for part, ms in profile.mean_ms(rank).items()} for rank in (0, 1)}
    assert us[0] == {
        "data": 100, "h2d": 50, "forward": 150, "backward": 200, "wait": 50, "transfer": 150, "optimizer": 50,
        "other": 250,
    }  # fmt: skip
    assert us[1] == us[0] | {"backward": 300, "wait": 0, "transfer": 100}
    assert all(sum(step.parts.values()) == step.wall for mine in profile.steps.values() for step in mine)
    facts = profile.to_json()
    assert (facts["device"], facts["collectives"]["bytes"], facts["collectives"]["matched"]) == ("cuda", 4000, 5)
    assert [rank["host"] for rank in facts["ranks"]] == ["node-0", "node-1"]
    assert facts["missing_ranks"] == []


def test_ranks_without_a_trace_are_told(tmp_path):
    """What is waited for in them would be taken for transfer."""
    write_trace(tmp_path / "rank-1.trace.json", 1, world_size=4)
    facts = profile_traces(tmp_path).to_json()
    assert (facts["world_size"], facts["missing_ranks"]) == (4, [0, 2, 3])
    assert "no traces of rank 0, 2, 3: waiting for these ranks counts as transfer" in profile_text(facts)


def test_the_late_rank_of_a_gpu_job_is_named(tmp_path):
    """By the start of its first bucket, in the part where it loses its time; the others wait."""
    profile = profile_traces(gpu_folder(tmp_path, rank1=150))
    assert (profile.straggler.rank, profile.straggler.last_share) == (1, 1.0)
    assert profile.straggler.score == pytest.approx(450 / 600)
    found = {finding.cause: finding for finding in profile.findings}
    assert "loses this time in backward: 0.3 ms against 0.2 ms" in found["straggler"].text
    assert "rank 1 is the last to be ready in 100% of the steps" in profile_text(profile.to_json())
    even = tmp_path / "even"
    even.mkdir()
    assert profile_traces(gpu_folder(even)).straggler is None


def test_clocks_are_compared_and_not_needed(tmp_path):
    """A clock that is two seconds ahead is found by the ends of collectives, and changes no part."""
    for rank in range(2):
        write_trace(tmp_path / f"rank-{rank}.trace.json", rank, late=100 * rank, shift=2e6 * rank)
    facts = profile_traces(tmp_path).to_json()
    assert [rank["clock_offset_ms"] for rank in facts["ranks"]] == [0.0, 2000.0]
    assert facts["ranks"][0]["mean_ms"]["wait"] == pytest.approx(0.05)


def test_a_collective_without_a_partner_is_left_alone(tmp_path):
    """A rank that has one more in a step spoils the matching of that step only."""
    gpu_folder(tmp_path, rank1=100)
    path = tmp_path / "rank-0.trace.json"
    whole = json.loads(path.read_text())
    extra = next(e for e in whole["traceEvents"] if "nccl" in e.get("name", "") and e["ts"] > 3000)
    whole["traceEvents"].append(extra | {"ts": extra["ts"] - 100, "dur": 10})
    path.write_text(json.dumps(whole))
    matching = profile_traces(tmp_path).matching
    assert (len(matching.groups), matching.unmatched) == (4, 3)


def test_a_trace_without_our_marks_has_a_forward_and_a_backward(tmp_path):
    """Of any script, on a CPU: the backward lasts to the end of the bucket it waits for, the loss is forward."""
    events = [e for e in one_step(0, 1000, late=0) if e["cat"] in {"user_annotation", "cpu_op"}]
    events.append(events[0] | {"name": "gloo:all_reduce", "ts": 1380, "dur": 15, "tid": 9})
    (tmp_path / "mine_rank3.trace.json").write_text(json.dumps({"traceEvents": events}))
    trace = read_trace(tmp_path / "mine_rank3.trace.json")
    assert trace.rank == 3
    (step,) = split_steps(trace, find_phases(trace))
    assert {part: step.parts[part] // 1000 for part in PARTS} == {
        "data": 100, "h2d": 0, "forward": 80, "backward": 200, "wait": 0, "transfer": 0, "optimizer": 50, "other": 570,
    }  # fmt: skip
    assert step.ready == 380_000


def test_a_node_that_waits_for_its_collective_computes_nothing(tmp_path):
    """Nor does it hide it, but for the operators inside; a collective that runs on behind its node is hidden by it."""
    events = [e for e in one_step(0, 1000, late=0) if e["cat"] in {"user_annotation", "cpu_op"}]
    events += [
        event("cpu_op", "c10d::allreduce_", 1210, 5, tid=2),
        events[0] | {"name": "gloo:all_reduce", "ts": 1220, "dur": 80, "tid": 9},
        event("cpu_op", "aten::mul", 1240, 20, tid=2),
        event("cpu_op", "c10d::allreduce_", 1340, 5, tid=2),
        events[0] | {"name": "gloo:all_reduce", "ts": 1350, "dur": 55, "tid": 9},
    ]
    (tmp_path / "rank-0.trace.json").write_text(json.dumps({"traceEvents": events}))
    trace = read_trace(tmp_path / "rank-0.trace.json")
    (step,) = split_steps(trace, find_phases(trace))
    assert {part: step.parts[part] // 1000 for part in PARTS} == {
        "data": 100, "h2d": 0, "forward": 80, "backward": 140, "wait": 0, "transfer": 65, "optimizer": 45, "other": 570,
    }  # fmt: skip


def test_a_functional_collective_is_waited_for_and_not_computed(tmp_path):
    """As DTensor and compiled code issue them: the wait is an operator of its own, behind the one that asks."""
    events = [e for e in one_step(0, 1000, late=0) if e["cat"] in {"user_annotation", "cpu_op"}]
    events += [
        event("cpu_op", "_c10d_functional::all_reduce", 1710, 5),
        events[0] | {"name": "gloo:all_reduce", "ts": 1715, "dur": 60, "tid": 9},
        event("cpu_op", "aten::mul", 1720, 20),
        event("cpu_op", "_c10d_functional::wait_tensor", 1740, 40),
    ]
    (tmp_path / "rank-0.trace.json").write_text(json.dumps({"traceEvents": events}))
    trace = read_trace(tmp_path / "rank-0.trace.json")
    (step,) = split_steps(trace, find_phases(trace))
    assert (step.parts["transfer"] // 1000, step.comm // 1000) == (40, 60)


def test_what_is_no_trace_is_refused_with_its_name(tmp_path):
    """Cut off, another JSON, without steps, twice the same rank, nothing there: each says which file and what to do."""
    with pytest.raises(DataError, match=r"hold no \*\.trace\.json"):
        profile_traces(tmp_path)
    path = tmp_path / "rank-0.trace.json"
    write_trace(path, 0)
    whole = path.read_text()
    event = '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": %s, "dur": %s}]}'
    odd = [event % times for times in (("Infinity", "1"), ("NaN", "1"), ("1", "-5"), ('"x"', "1"), ("1e30", "1"))]
    odd += [json.dumps({"distributedInfo": {"rank": 0, "world_size": size}}) for size in (0, 10**30)]
    odd += ['{"traceEvents": [%s' % ("[" * 100_000), '{"distributedInfo": {"rank": null}}']
    for text in ("", whole[: len(whole) // 2], "[1, 2]", '{"traceEvents": [3]}', '{"traceEvents": 3}', *odd):
        path.write_text(text)
        with pytest.raises(DataError, match=r"rank-0\.trace\.json is not a complete trace"):
            profile_traces(tmp_path)
    path.write_text('{"traceEvents": []}')
    with pytest.raises(DataError, match="has no ProfilerStep"):
        profile_traces(tmp_path)
    path.with_name("cut.trace.json.gz").write_bytes(b"\x1f\x8b\x08 no gzip")
    with pytest.raises(DataError, match=r"cut\.trace\.json\.gz is not a complete trace"):
        read_trace(tmp_path / "cut.trace.json.gz")
    packed = bytearray(gzip.compress(whole.encode()))
    packed[len(packed) // 2] ^= 0xFF
    (tmp_path / "cut.trace.json.gz").write_bytes(packed)
    with pytest.raises(DataError, match=r"cut\.trace\.json\.gz is not a complete trace"):
        read_trace(tmp_path / "cut.trace.json.gz")
    (tmp_path / "cut.trace.json.gz").unlink()
    path.write_text(whole)
    for text in ("{", "[]", '{"settings": {}, "num_traced": null}'):
        (tmp_path / "rank-0.json").write_text(text)
        with pytest.raises(DataError, match=r"rank-0\.json is not the file"):
            profile_traces(tmp_path)
    (tmp_path / "rank-0.json").write_text('{"settings": {}, "num_traced": 0, "first_traced": 7}')
    with pytest.raises(DataError, match="ended before a step was recorded"):
        profile_traces(tmp_path)
    (tmp_path / "rank-0.json").unlink()
    path.with_name("other.trace.json").write_text(whole)
    with pytest.raises(DataError, match="both belong to rank 0"):
        profile_traces(tmp_path)
