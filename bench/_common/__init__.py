"""What the comparisons share: processes that answer, statistics of paired rounds, goals, and the machine."""
