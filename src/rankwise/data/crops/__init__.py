"""nD boxes out of Zarr arrays as batches."""
