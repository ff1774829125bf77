"""The parts of `bench/rows.py`."""
