"""Turns pushed samples into batches: separate threads pull, open, plan and read."""

from __future__ import annotations
