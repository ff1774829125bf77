"""The ranks of several machines: a supervisor on each, which agree on rounds through one that holds the rendezvous."""
