"""Check that each rank gets its own share of the data: samples, the loader's lengths and epochs, random streams."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from rankwise.guard.check import Check, CheckedStep, Subject, tensors_of
from rankwise.guard.findings import differing_ranks, listed
from rankwise.guard.tensors import row_hashes

_MOST_ROWS = 128
_SAME, _ALIKE = 0.9, 0.5  # fractions of a rank's rows that another rank has too
_ENOUGH = 8  # rows in consecutive checks that do not match in the same places by chance


class Samples(Check):
    """No sample is in two ranks' shares of a step, judged by the content of the model's inputs."""

    name = "samples"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._rows: list[int] = []
        self._before: dict[tuple[int, int], list[bool]] = {}

    def arm(self) -> None:
        """Register a hook on the model's inputs."""
        self._rows = []
        self._subject.hook(self._subject.model.register_forward_pre_hook, self._see, with_kwargs=True)

    def _see(self, model: Any, values: Any, named: Any) -> None:
        import torch

        room = _MOST_ROWS - len(self._rows)
        if model.training and torch.is_grad_enabled() and room > 0:
            self._rows += row_hashes(tensors_of((values, named)), room)

    def facts(self) -> list[int]:
        """Return a hash of each row, in order."""
        return self._rows

    def compare(self, facts: Sequence[Any], step: CheckedStep) -> None:
        """Compare each pair of ranks; report what holds at two checked steps in a row."""
        sets = [set(rows) for rows in facts]
        # inputs with few distinct rows (small or constant inputs) coincide by chance
        telling = [r for r, rows in enumerate(facts) if len(rows) >= 2 and 2 * len(sets[r]) > len(rows)]
        pairs = [(a, b) for a in telling for b in telling if a < b]
        shares = {(a, b): len(sets[a] & sets[b]) / min(len(sets[a]), len(sets[b])) for a, b in pairs}
        before, self._before = self._before, {}
        for (a, b), share in shares.items():
            if share >= _ALIKE:  # categories coincide by themselves, but in other places
                places = [x == y for x, y in zip(facts[a], facts[b], strict=False)]
                self._before[a, b] = [*before.get((a, b), ()), *places][-2 * _MOST_ROWS :]
        again = sorted(before.keys() & self._before.keys(), key=lambda pair: (-sum(self._before[pair]), pair))
        if not again:
            return
        a, b = again[0]
        places = self._before[a, b]
        common = sets[a] & sets[b]
        step.report(
            self.name,
            sorted({rank for pair in again for rank in pair}),
            f"rows {listed(str(row) for row, number in enumerate(facts[a]) if number in common)} of rank {a}'s part",
            wanted="each sample of a step on one rank",
            came=f"rank {b} has {len(common)} of the {len(sets[a])} different rows of rank {a}, twice in a row",
            mend="Pass a DistributedSampler to the loader, or use an Order, which assigns every sample once",
            certain=len(places) >= _ENOUGH and sum(places) >= _SAME * len(places),
        )


def _sampler_of(loader: Any) -> Any:
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    return inner if inner is not None and not hasattr(sampler, "num_replicas") else sampler


def _length(thing: Any) -> int | None:
    with suppress(TypeError, NotImplementedError):
        return len(thing)
    return None


def loader_facts(loader: Any) -> dict[str, Any]:
    """Return a loader's length and sampler shares, and a hash of some data if each rank may get all of them."""
    sampler, dataset, steps = _sampler_of(loader), getattr(loader, "dataset", None), _length(loader)
    facts: dict[str, Any] = {"steps": steps}
    if hasattr(sampler, "num_replicas") and hasattr(sampler, "rank"):
        return {**facts, "dealt": (int(sampler.num_replicas), int(sampler.rank))}
    size, batch = _length(dataset), getattr(loader, "batch_size", None)
    # count half of the last batch, which may be short
    if steps and size and isinstance(batch, int) and (steps - 0.5) * batch > _ALIKE * size:
        content = _samples_hash(dataset, size)
        facts["all"] = None if content is None else (size, content)
    return facts


def _samples_hash(dataset: Any, size: int) -> int | None:
    """Return a hash of two samples of a dataset, read with fixed random seeds; the random states are restored."""
    import torch

    kept = random.getstate(), np.random.get_state()  # noqa: NPY002  (what users' code draws from)
    crc = 0
    with torch.random.fork_rng(devices=[]):
        try:
            for index in (0, size // 2):
                random.seed(index)
                np.random.seed(index)  # noqa: NPY002
                torch.manual_seed(index)
                parts = tensors_of(_as_tensors(dataset[index]))
                crc = zlib.crc32(repr([row_hashes([t.reshape(1, -1)], 1) for t in parts]).encode(), crc)
        except Exception:  # noqa: BLE001  (a dataset that cannot be read is not judged)
            return None
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])  # noqa: NPY002
    return crc


def _as_tensors(value: Any) -> Any:
    import torch

    if isinstance(value, dict):
        return {key: _as_tensors(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_as_tensors(part) for part in value]
    with suppress(TypeError, ValueError, RuntimeError):
        return value if isinstance(value, torch.Tensor) else torch.as_tensor(np.asarray(value))
    return value


def compare_loaders(facts: Sequence[Any], step: CheckedStep) -> None:
    """Compare the loaders of all ranks before the first step."""
    lengths = [fact.get("steps") for fact in facts]
    if len(set(lengths)) > 1:
        step.report(
            "loader",
            differing_ranks(lengths),
            "the loader's length",
            wanted="the same number of batches on every rank",
            came="; ".join(f"rank {rank} has {count}" for rank, count in enumerate(lengths)),
            mend="The rank with more batches waits for the others at the epoch's end until the time-out: spread the "
            "samples evenly (DistributedSampler, Order), or use ExactStep or torch's Join",
        )
    size = step.world.world_size
    dealt = [fact.get("dealt") for fact in facts]
    # each share must be on one rank; it does not matter on which
    if None not in dealt and sorted(dealt) != [(size, rank) for rank in range(size)]:
        step.report(
            "loader",
            [rank for rank, part in enumerate(dealt) if part != (size, rank)],
            "the loader's sampler",
            wanted=f"each of the parts 0 to {size - 1} of {size} on one rank",
            came="; ".join(f"rank {rank} reads part {part} of {count}" for rank, (count, part) in enumerate(dealt)),
            mend="Leave num_replicas and rank out of DistributedSampler, which reads them from the group: a local rank "
            "differs from the rank on several machines",
        )
    whole = {fact.get("all") for fact in facts}
    if size > 1 and len(whole) == 1 and (found := next(iter(whole))) is not None:
        step.report(
            "loader",
            range(size),
            "the loader's epoch",
            wanted=f"each of the {found[0]} samples once in an epoch, over all ranks",
            came=f"every rank reads all of them: an epoch is {size} times too long",
            mend="Pass a DistributedSampler to the loader, or use an Order",
            certain=False,
        )


class Epochs(Check):
    """Detects an iteration that starts in the same state as an earlier one, so has the same order of samples."""

    name = "loader"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._loader: Any = subject.loader
        self._plain: Any = type(subject.loader)
        self._begun: list[str] = []
        self._stale = ""
        if self._loader is not None:
            with suppress(TypeError, AttributeError):  # slots, or a proxy (Accelerate): its iterations are not seen
                begin = lambda loader: self._begin(loader)  # noqa: E731, PLW0108  (a bound method gets no loader)
                watched = {"__iter__": begin, "__module__": self._plain.__module__}
                # of a subclass, as `for` looks up `__iter__` in the class
                self._loader.__class__ = type(self._plain.__name__, (self._plain,), watched)

    def close(self) -> None:
        """Restore the loader's class."""
        if type(self._loader) is not self._plain:
            self._loader.__class__ = self._plain

    def _begin(self, loader: Any) -> Any:
        """Note where an iteration begins, and begin it."""
        where = _epoch_of(self._loader)
        if where in self._begun and not self._stale:
            self._stale = f"an iteration begins at {where}, like an earlier one"
        self._begun = [*self._begun, where][-4:] if where else []
        return self._plain.__iter__(loader)

    def facts(self) -> str:
        """Return the problem with the iterations so far."""
        return self._stale

    def compare(self, facts: Sequence[Any], step: CheckedStep) -> None:
        """Report an epoch that was not advanced."""
        if ranks := [rank for rank, fact in enumerate(facts) if fact]:
            step.report(
                self.name,
                ranks,
                "the loader's order",
                wanted="a different order in each epoch",
                came=facts[ranks[0]],
                mend="Call sampler.set_epoch(epoch) (rankwise loaders: loader.set_epoch(epoch), and mark_done) "
                "before each iteration",
                certain=False,
            )


def _epoch_of(loader: Any) -> str:
    """Return the state that differs between epochs; "" if there is none, or the order is fixed on purpose."""
    sampler = _sampler_of(loader)
    if hasattr(sampler, "epoch") and getattr(sampler, "shuffle", True):
        return f"epoch {sampler.epoch}"
    if hasattr(loader, "mark_done") and getattr(getattr(loader, "order", None), "kind", "") != "sequential":
        state = loader.state_dict()
        return f"epoch {state['epoch']}, sample {state['position']}" if "position" in state else ""
    return ""


class RandomStreams(Check):
    """Ranks with dropout or augmentation must use different random streams."""

    name = "random"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._before: dict[str, int] = {}

    def facts(self) -> dict[str, int]:
        """Return a hash of the state of each generator that was used, as far as known."""
        import torch
        from torch import nn

        kinds = (nn.modules.dropout._DropoutNd, nn.RReLU)  # noqa: SLF001  (the only common base)
        model, facts = self._subject.model, {}
        if any(isinstance(m, kinds) and m.training and getattr(m, "p", 1) > 0 for m in model.modules()):
            device = next((p.device for p in model.parameters()), torch.device("cpu"))
            state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
            facts["torch's generator, from which dropout draws"] = zlib.crc32(state.numpy().tobytes())
        numpys: Any = np.random.get_state(legacy=False)  # noqa: NPY002
        drawn = [numpys, *(value for value in numpys.values() if isinstance(value, dict))]
        words = [value.tobytes() for of in drawn for value in of.values() if isinstance(value, np.ndarray)]
        plain = [value for of in drawn for value in of.values() if isinstance(value, int | float | str)]
        now = {
            "the generator of `random`": hash(random.getstate()[1]) & 0xFFFFFFFF,  # integers have no hash salt
            # the repr of an array of 624 words would take longer than the rest of the checks
            "NumPy's global generator": zlib.crc32(b"".join([repr(plain).encode(), *words])),
        }
        facts.update({name: state for name, state in now.items() if self._before.get(name, state) != state})
        self._before = now
        return facts

    def compare(self, facts: Sequence[Any], step: CheckedStep) -> None:
        """Report generators that have the same state on several ranks."""
        for name in dict.fromkeys(name for fact in facts for name in fact):
            states = [fact.get(name, -1 - rank) for rank, fact in enumerate(facts)]
            if same := [rank for rank, state in enumerate(states) if states.count(state) > 1]:
                step.report(
                    self.name,
                    same,
                    name,
                    wanted="a separate stream on each rank",
                    came="they draw the same numbers: dropout and augmentation are the same on all ranks",
                    mend="Seed with the rank after the model is built, torch.manual_seed(seed + rank); prepare() does",
                    certain=False,
                )
