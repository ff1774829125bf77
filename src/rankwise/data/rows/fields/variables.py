"""Variables of several stores: whether they are the same ones everywhere, and where chosen ones lie in each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from rankwise.data.contract import IntArray
from rankwise.data.rows.datasets import AnyDataset
from rankwise.data.rows.fields.genes import chosen_genes
from rankwise.errors import ConfigError

__all__ = ["Variables", "modality_of"]

_SHOWN = 5
_OF_MODALITY = re.compile(r"(mod/[^/]+)/(X|layers/.+)")


def modality_of(matrix: str) -> str | None:
    """Return the modality whose variables are the columns of a matrix: "" = the store's own, None = none."""
    if matrix == "X" or matrix.startswith("layers/"):
        return ""
    found = _OF_MODALITY.fullmatch(matrix)
    return None if found is None else found[1]


class Variables:
    """The variables of one modality in all datasets. Names are read when they are needed first.

    Args:
        datasets: all have it.
        modality: as `modality_of` says.
    """

    def __init__(self, datasets: Sequence[AnyDataset], modality: str) -> None:
        self._datasets = datasets
        self._modality = modality
        self._names: dict[int, tuple[str, ...]] = {}

    def names(self, number: int) -> tuple[str, ...]:
        """Return the names of the variables of a dataset."""
        if number not in self._names:
            self._names[number] = self._datasets[number].var_names(self._modality)
        return self._names[number]

    @property
    def first_difference(self) -> int | None:
        """The first dataset whose variables are not those of the first one; None = all are the same."""
        return next((k for k in range(1, len(self._datasets)) if self.names(k) != self.names(0)), None)

    def check_same(self) -> None:
        """Refuse datasets with different variables: that numbers of columns agree says nothing about them.

        Raises:
            ConfigError: column i is not the same gene everywhere.
        """
        odd = self.first_difference
        if odd is None:
            return
        first, other = self.names(0), self.names(odd)
        pairs = enumerate(zip(first, other, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), min(len(first), len(other)))
        raise ConfigError(
            f"the datasets want the same variables in the same order; {self._datasets[odd].place} has {len(other)} and "
            f"{self._datasets[0].place} {len(first)}, they differ from number {at} on: choose genes=[...] by names "
            "that all have, or write them to one collection, which brings them into one order"
        )

    def columns(self, genes: Sequence[Any], num_columns: int) -> list[IntArray]:
        """Return where chosen variables lie: one list of columns, or one for each dataset if they differ.

        Args:
            genes: names or numbers.
            num_columns: columns of the first dataset.

        Raises:
            ConfigError: there are no such variables, or not everywhere.
        """
        if all(not isinstance(gene, str) for gene in genes):
            self.check_same()
        elif self.first_difference is not None:
            self._check_held(genes)
            every = [self.names(k) for k in range(len(self._datasets))]
            return [chosen_genes(genes, len(names), partial(tuple, names)) for names in every]
        return [chosen_genes(genes, num_columns, lambda: self.names(0))]

    def _check_held(self, genes: Sequence[Any]) -> None:
        numbers = [gene for gene in genes if not isinstance(gene, str)]
        if numbers:
            raise ConfigError(
                f"the datasets have different variables: genes= wants names then, got the number {numbers[0]!r}"
            )
        for number, dataset in enumerate(self._datasets):
            held = set(self.names(number))
            missing = [gene for gene in genes if gene not in held]
            if missing:
                raise ConfigError(
                    f"{dataset.place} lacks {len(missing)} of the {len(genes)} genes=, such as {missing[:_SHOWN]}: "
                    "leave them or this store out (a collection of all stores joins their variables)"
                )
