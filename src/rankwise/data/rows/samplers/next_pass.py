"""What a sampler will draw in its next pass, without its noticing."""

from __future__ import annotations

import copy

from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.samplers.chunks import RandomSampler, SequentialSampler
from rankwise.data.rows.samplers.classes import ClassSampler, WeightedClassSampler
from rankwise.data.rows.samplers.distributed import DistributedSampler

__all__ = ["foreseen"]

# exactly these: a class that inherits from one may draw otherwise
_KEYED = (RandomSampler, SequentialSampler, ClassSampler, WeightedClassSampler)


def foreseen(sampler: Sampler) -> Sampler | None:
    """Return a copy that draws what `sampler` will draw in its next pass, if nothing about it changes until then.

    Passes of our samplers are functions of a seed and of the number of the pass. A seed that is still to be drawn, at
    the first pass, is drawn by the copy from a copy of the generator: who else draws from that one changes what comes.
    None for all other samplers: they may draw from anywhere.
    """
    kind = type(sampler)
    if kind in _KEYED:
        return _copied(sampler)
    if kind is not DistributedSampler:
        return None
    inner = foreseen(sampler.__dict__["_sampler"])
    if inner is None or isinstance(inner, ClassSampler):  # which sorts its part anew in each pass
        return None
    outer = copy.copy(sampler)
    outer.__dict__["_sampler"] = inner
    return outer


def _copied(sampler: Sampler) -> Sampler:
    made = copy.copy(sampler)
    if not sampler.knows_seed:
        made.__dict__["_rng"] = copy.deepcopy(sampler.rng)  # not by assigning it: that begins at epoch 0 again
    return made
