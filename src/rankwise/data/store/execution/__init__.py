"""Carries out plans: several threads read and decode slabs of chunks directly into the batch."""
