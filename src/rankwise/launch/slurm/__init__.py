"""Slurm: ranks on all nodes of an allocation, and submitting such jobs (through submitit)."""
