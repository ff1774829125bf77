"""Catalogues: the contents of many stores in one file."""

from __future__ import annotations

from rankwise.data.store.catalogue.builder import build_catalogue
from rankwise.data.store.catalogue.lookup import Catalogue

__all__ = ["Catalogue", "build_catalogue"]
