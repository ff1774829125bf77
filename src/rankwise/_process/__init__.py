"""What a process is, from its environment alone: its place among the ranks, its cores, whether a loader's worker."""
