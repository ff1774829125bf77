"""The memory of batches: the pool, buffers from it, leases on them, and sparse rows in it."""
