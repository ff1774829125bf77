"""What has to be installed to read the tables of AnnData stores."""

from __future__ import annotations

from typing import Any

from rankwise.errors import MissingExtraError

__all__ = ["load_anndata"]


def load_anndata() -> Any:
    """Return the anndata module.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import anndata
    except ImportError as error:
        raise MissingExtraError("rows of AnnData stores need anndata: pip install 'rankwise[rows]'") from error
    return anndata
