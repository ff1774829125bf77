"""How a launch fails: a rank's report, the root cause, the rank that blocks the others, and what is told and kept."""
