"""The rendezvous of the ranks: where rank 0 serves a store, and how all meet over it."""
