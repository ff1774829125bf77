"""The files of a checkpoint: what they hold, how they are written and checked."""
