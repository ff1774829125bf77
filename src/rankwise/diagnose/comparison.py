"""Compare the records of several runs' ranks: find the first difference and its reason."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

# relative difference that counts as rounding at the first step; it grows by a tenth per step, tenfold for parameters;
# float32: the bias of a 3-D convolution, a sum of 10^5 terms that cancel, differs by up to 1.5e-4 at step 9
_ROUNDING = {"float64": 1e-10, "float32": 1e-4}
_COARSE = 2e-2
_VALUES = 1e-3  # upper limit for the tolerance of reduced values, which is a hundred times the above
_MAYBE_ROUNDING = 100  # factor of the limit: below it, the difference may be rounding of a model with more cancellation
_MOST_IDS = 6
_OTHER_BITS = 1e-17  # for tensors whose bits differ although norm and recorded values are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference.

    Attributes:
        run: name of the run, such as "2 ranks".
        step: number of the optimizer step, from 0; None if it belongs to none.
        what: "failed", "steps", "samples", "split", "epoch order", "evaluation", "replicas", "loss", "gradients",
            "parameters", "values" or "restart".
        text: the observation, with parameter, sample and ranks.
        reason: possible cause and solution; "" if unknown.
    """

    run: str
    step: int | None
    what: str
    text: str
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class Verdict:
    """The result of a comparison.

    Attributes:
        findings: differences above rounding, the earliest first.
        agreement: for each run: what is equal, and how closely.
    """

    findings: list[Finding] = field(default_factory=list)
    agreement: list[str] = field(default_factory=list)

    @property
    def exitcode(self) -> int:
        """Return 0 for the same training, 1 for a difference, 2 if a run failed or took no step."""
        return 2 if any(f.what == "failed" for f in self.findings) else int(bool(self.findings))

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {"same": not self.findings, "agreement": self.agreement, "findings": [asdict(f) for f in self.findings]}

    def __str__(self) -> str:
        lines = [f"ok    {line}" for line in self.agreement]
        for number, found in enumerate(self.findings):
            place = found.run if found.step is None else f"{found.run}, step {found.step}"
            lines.append(f"{'FIRST' if number == 0 else 'also '} {place}: {found.what}: {found.text}")
            lines += [f"      why: {found.reason}"] if found.reason else []
        end = "not the same training" if self.findings else "the same training"
        return "\n".join([*lines, end])


@dataclass(slots=True)
class Run:
    """The records of one run's ranks."""

    name: str
    num_ranks: int
    lines: list[list[Mapping[str, Any]]]

    def of(self, kind: str, rank: int) -> list[Mapping[str, Any]]:
        """Return a rank's lines of a kind."""
        return [line for line in self.lines[rank] if line["kind"] == kind]

    @property
    def num_steps(self) -> int:
        """Return the number of steps that all ranks have taken."""
        return min(len(self.of("step", rank)) for rank in range(self.num_ranks))

    @property
    def model(self) -> Mapping[str, Any]:
        """Return rank 0's record of the model."""
        return self.of("model", 0)[0]

    def finding(self, step: int | None, what: str, text: str, reason: str = "") -> Finding:
        """Return a finding about this run."""
        return Finding(run=self.name, step=step, what=what, text=text, reason=reason)

    def steps(self) -> Iterator[list[Mapping[str, Any]]]:
        """Yield each step's lines, by rank."""
        yield from zip(*(self.of("step", rank) for rank in range(self.num_ranks)), strict=False)


def check_one_run(run: Run) -> list[Finding]:
    """Return the findings within one run."""
    found = [*_epoch_order(run), *_evaluation(run)]
    counts = [len(run.of("step", rank)) for rank in range(run.num_ranks)]
    if len(set(counts)) > 1:
        told = ", ".join(f"{count} on rank {rank}" for rank, count in enumerate(counts))
        found.append(run.finding(min(counts), "steps", f"the ranks took different numbers of steps: {told}"))
    for number, lines in enumerate(run.steps()):
        apart = _apart(run, number, lines) or _twice(run, number, lines)
        if apart is not None:
            return [*found, apart]
    return found


def _epoch_order(run: Run) -> list[Finding]:
    for before, line in itertools.pairwise(sorted(run.of("iterate", 0), key=lambda line: line["loader"])):
        same = (before["loader"], before["sampler"], before.get("epoch")) == (
            line["loader"],
            line["sampler"],
            line.get("epoch"),
        )
        if same and line["sampler"] == "DistributedSampler" and line.get("shuffle"):
            text = f"pass {line['turn']} over loader {line['loader']} has the same order as the pass before it"
            reason = "the sampler did not get the epoch: call sampler.set_epoch(epoch) before each pass"
            return [run.finding(line["step"], "epoch order", text, reason)]
    return []


def _evaluation(run: Run) -> list[Finding]:
    """Find held-out samples that were evaluated several times in one pass."""
    passes: dict[tuple[int, int], list[list[int]]] = {}
    for rank in range(run.num_ranks):
        for line in run.of("look", rank):
            seen = passes.setdefault((line["loader"], line["turn"]), [[] for _ in range(run.num_ranks)])
            seen[rank] += line["ids"]
    trained = {i for rank in range(run.num_ranks) for line in run.of("step", rank) for i in line["ids"] or ()}
    splits = [{line["split"] for line in run.of("iterate", rank)} for rank in range(run.num_ranks)]
    for (loader, turn), seen in sorted(passes.items()):
        whole = Counter(itertools.chain.from_iterable(seen))
        if any(split != splits[0] for split in splits) and (leaked := sorted(trained & whole.keys())):
            text = f"used for training on one rank and held out on another: {_some(leaked)}"
            reason = (
                "the split depends on the rank: draw it from one seed on all ranks "
                "(random_split(..., generator=torch.Generator().manual_seed(0)))"
            )
            return [run.finding(0, "split", text, reason)]
        repeated = sorted(i for i, count in whole.items() if count > 1)
        # if every rank evaluates all samples, the mean is right
        if repeated and any(Counter(ids) != whole and Counter(ids) != Counter(seen[0]) for ids in seen):
            text = f"counted more than once in pass {turn} over loader {loader}: {_some(repeated)}"
            reason = (
                "the sampler repeats samples to give all ranks equal numbers, and the metric counts them: evaluate "
                "without padding (rankwise.train.evaluate, or a sequential Order)"
            )
            looks = (line for rank in range(run.num_ranks) for line in run.of("look", rank))
            step = next(line["step"] for line in looks if (line["loader"], line["turn"]) == (loader, turn))
            return [run.finding(step, "evaluation", text, reason)]
    return []


def _apart(run: Run, number: int, lines: list[Mapping[str, Any]]) -> Finding | None:
    """Find gradients or parameters that differ between ranks."""
    for kind, what in (("grads", "gradient"), ("params", "parameter")):
        for name, (digest, *_) in lines[0][kind].items():
            odd = [rank for rank, line in enumerate(lines) if line[kind].get(name, [None])[0] != digest]
            if not odd:
                continue
            if name in run.model["late"]:
                reason = (
                    f"{name} was created after the wrap, so DistributedDataParallel does not know it: change and move "
                    "the model first, then wrap it"
                )
            elif run.model["wrapped"] and not lines[0]["forwards"]:
                reason = "the forward bypassed the wrapper (model.module(...)): call the wrapped model"
            elif run.model["wrapped"]:
                reason = "the backward did not synchronise: it ran under no_sync, or the model was moved after the wrap"
            else:
                reason = "nothing reduces the gradients over the ranks: wrap the model (rankwise.prepare)"
            text = f"the {what} of {name} on rank {odd[0]} differs from that of rank 0"
            return run.finding(number, "replicas", text, reason)
    return None


def _twice(run: Run, number: int, lines: list[Mapping[str, Any]]) -> Finding | None:
    seen = [set(line["ids"] or ()) for line in lines]
    for (one, mine), (other, theirs) in itertools.combinations(enumerate(seen), 2):
        if both := sorted(mine & theirs):
            text = f"used for training on both rank {one} and rank {other}: {_some(both)}"
            reason = "the samples are not divided among the ranks: use a DistributedSampler or an Order"
            return run.finding(number, "samples", text, reason)
    return None


def compare_runs(wanted: Run, run: Run, tolerance: float | None, verdict: Verdict) -> None:
    """Compare step by step, and stop at the first difference above rounding."""
    autocast = wanted.model.get("autocast", "")
    base = _ROUNDING.get(autocast or wanted.model["dtype"], _COARSE) if tolerance is None else tolerance
    worst = {"loss": 0.0, "gradients": 0.0, "parameters": 0.0}
    seen = {found.what for found in verdict.findings if found.run == run.name}
    if seen & {"split", "samples", "replicas"}:
        return  # later differences are only consequences
    for number, (old, new) in enumerate(zip(wanted.steps(), run.steps(), strict=False)):
        found = samples_apart(run, number, old, new)
        limit = base * (1 if tolerance is not None else 1 + number / 10)
        for what, kind, allowed in (
            ("loss", "", limit),
            ("gradients", "grads", limit),
            ("parameters", "params", 10 * limit),
        ):
            if found is not None:
                break
            name, apart = _loss_apart(old, new) if what == "loss" else tensors_apart(old[0][kind], new[0][kind])
            worst[what] = max(worst[what], apart)
            if apart > allowed:
                text = f"{name} differs by {apart:.2g} relative, rounding allows up to {allowed:.1g}"
                reason = _why(run, new)
                if base != _ROUNDING["float64"] and tolerance is None and apart < _MAYBE_ROUNDING * allowed:
                    reason += "; or rounding of long sums that cancel, which would disappear in float64"
                found = run.finding(number, what, text, reason)
        if found is not None:
            verdict.findings.append(found)
            return
    if (counts := (wanted.num_steps, run.num_steps))[0] != counts[1]:
        text = f"{counts[1]} steps, but {wanted.name} took {counts[0]}"
        verdict.findings.append(run.finding(min(counts), "steps", text))
    if "evaluation" not in seen:
        _values(wanted, run, base, verdict)
    told = ", ".join(f"{what} {'bits' if apart == 0 else f'rounding ({apart:.1g})'}" for what, apart in worst.items())
    known = all(line["ids"] is not None for lines in run.steps() for line in lines)
    samples = "the same samples" if known else "samples unknown"
    under = f", under autocast to {autocast}" if autocast else ""
    verdict.agreement.append(f"{run.name} against {wanted.name}: {min(counts)} steps, {samples}, {told}{under}")


def samples_apart(
    run: Run, number: int, old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]
) -> Finding | None:
    """Return how the samples of a step differ, None if they are equal or unknown."""
    if any(line["ids"] is None for line in (*old, *new)):
        return None
    before, now = (Counter(i for line in lines for i in line["ids"]) for lines in (old, new))
    if before == now:
        return None
    missing, more = sorted((before - now).elements()), sorted((now - before).elements())
    reason = ""
    if sum(now.values()) == sum(before.values()) * len(new) // len(old) and len(new) != len(old):
        reason = (
            "the batch size is that of one rank, so the global batch grows with the number of ranks: divide it by that "
            "number"
        )
    elif any(count > 1 for count in now.values()):
        reason = "the sampler repeats samples to give all ranks equal numbers"
    text = (
        f"{sum(now.values())} samples, expected {sum(before.values())}; missing {_some(missing)}; extra {_some(more)}"
    )
    return run.finding(number, "samples", text, reason)


def _loss(lines: Sequence[Mapping[str, Any]]) -> float:
    """Return the global loss: sum divided by weights; for a loss without weights, the mean over ranks by samples."""
    pairs = [pair for line in lines for pair in line["losses"]]
    if pairs and all(weight is not None for _, weight in pairs):
        return float(sum(total for total, _ in pairs)) / (sum(weight for _, weight in pairs) or 1.0)
    shares = [len(line["ids"]) if line["ids"] is not None else 1 for line in lines]
    means = [sum(total for total, _ in line["losses"]) for line in lines]
    return float(sum(mean * share for mean, share in zip(means, shares, strict=True)) / (sum(shares) or 1))


def _loss_apart(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> tuple[str, float]:
    before, now = _loss(old), _loss(new)
    return f"the loss ({now:.6g}, expected {before:.6g})", _relative([before], [now])


def tensors_apart(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, float]:
    """Return the tensor that differs most, and its relative difference, of norms and of values.

    It is 0 only if all bits are equal.
    """
    worst = ("", 0.0)
    if old.keys() != new.keys():
        odd = sorted(old.keys() ^ new.keys())
        return f"{odd[0]} (on one side only)", math.inf
    whole = math.sqrt(sum(norm * norm for _, norm, _ in old.values()))
    for name, (digest, norm, values) in old.items():
        other, other_norm, others = new[name]
        if digest == other:
            continue
        if len(values) != len(others):
            return f"{name} (of another shape)", math.inf
        # relative to the tensor, but at least to a thousandth of all: some gradients are only rounding errors
        floor = max(norm, whole / 1000)
        part = math.sqrt(sum((a - b) ** 2 for a, b in zip(values, others, strict=True)))
        shown = max(abs(norm - other_norm), part)
        apart = (shown / floor if floor else math.inf) if shown else _OTHER_BITS
        worst = max(worst, (name, apart), key=lambda pair: math.inf if math.isnan(pair[1]) else pair[1])
    return worst


def _relative(old: Sequence[float], new: Sequence[float]) -> float:
    return max((abs(a - b) / max(abs(a), 1e-30) if a != b else 0.0) for a, b in zip(old, new, strict=True))


def _why(run: Run, lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the likely cause of different gradients for the same samples."""
    layers = run.model["layers"]
    if norms := [layer for layer in layers if layer.startswith("BatchNorm")]:
        return (
            f"{norms[0]} sees one rank's samples, so a batch divided differently gives a different model: use "
            "SyncBatchNorm or GroupNorm"
        )
    shares = [len(line["ids"] or ()) for line in lines]
    weighed = all(weight is not None for line in lines for _, weight in line["losses"])
    if not weighed and len(set(shares)) > 1:
        return (
            f"mean of means: the ranks have {shares} samples, but DDP takes the mean of their means: use ExactStep or "
            "Window"
        )
    if drops := [layer for layer in layers if "Dropout" in layer]:
        return f"{drops[0]}: each rank draws its own mask"
    if not weighed:
        return (
            "mean of means: each rank divides by its own count (tokens, masks, weights): pass sums and weights to "
            "Window"
        )
    return (
        "the step depends on how the samples are divided among the ranks: batch statistics, contrastive or Dice "
        "losses, random draws"
    )


def _values(wanted: Run, run: Run, base: float, verdict: Verdict) -> None:
    """Compare reduced values, in the order in which they were reduced."""
    limit = min(100 * base, max(_VALUES, base))
    for old, new in zip(wanted.of("values", 0), run.of("values", 0), strict=False):
        for name, value in old["values"].items():
            now = new["values"].get(name, math.nan)
            if not (math.isnan(value) and math.isnan(now)) and not _relative([value], [now]) <= limit:
                text = f"{name} is {now:.6g}, expected {value:.6g}"
                reason = "a mean of the ranks' means, or other samples: reduce sums and weights (rankwise.metrics)"
                verdict.findings.append(run.finding(new["step"], "values", text, reason))
                return


def _some(ids: Sequence[int]) -> str:
    if not ids:
        return "none"
    listed = ", ".join(map(str, ids[:_MOST_IDS])) + (f", ... ({len(ids)} in all)" if len(ids) > _MOST_IDS else "")
    return f"sample{'s' * (len(ids) > 1)} {listed}"
