"""`OrderedLoader`: rows and an order to batches, on this rank and its device."""

from __future__ import annotations

from rankwise.data.feed import RankLoader

__all__ = ["OrderedLoader"]


class OrderedLoader(RankLoader):
    """The loader of a `RowSource`, drawn as the order says; its arguments are those of `RankLoader`.

    ``batch["X"]`` is a ``torch.sparse_csr`` tensor where rows are sparse, SciPy's ``csr_matrix`` with ``device=None``;
    it lies in the loader's memory until the next step, like every field. With JAX it is a ``BCSR`` matrix, with as many
    stored elements as a few sizes allow, and all fields have memory of their own. `Log1pCounts` of dense rows on the
    CPU, such as `log1p_cpm`, is done on the reader thread, where rows are made.
    """

    def __repr__(self) -> str:
        return f"OrderedLoader({len(self)} steps to the end of the epoch; {self.source!r})"
