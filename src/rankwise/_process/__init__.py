"""This process's place among the ranks, its cores, and whether it is a DataLoader worker, from its environment."""
