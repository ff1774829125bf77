"""OME-Zarr (NGFF) images, labels and plates, versions 0.1 to 0.5."""
