"""The ranks of several machines: one supervisor per node; one of them holds the rendezvous and decides on rounds."""
