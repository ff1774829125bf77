"""What Trainer.fit runs: the loop, its run on disk, options and records, validation, and hooks."""
