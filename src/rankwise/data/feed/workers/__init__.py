"""Loaders inside torch's `DataLoader`: where passes of its workers begin, and how their batches are sent."""
