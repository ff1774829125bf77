"""Turns pushed samples into batches: separate threads pull and open, plan, and read."""

from __future__ import annotations
