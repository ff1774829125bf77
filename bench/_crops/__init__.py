"""The parts of `bench/crops.py`."""
