"""Pushed samples to batches: pulled, opened, planned, read and handed over by threads of their own."""

from __future__ import annotations
