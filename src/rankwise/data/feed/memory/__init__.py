"""The memory of batches: a pool of it, buffers in it, who has it, and sparse rows in it."""
