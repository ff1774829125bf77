"""Metadata of Zarr arrays and groups, parsed once; `ngff` and catalogues use it."""
