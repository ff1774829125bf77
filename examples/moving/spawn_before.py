"""Losses and metrics of several processes, summed and gathered by hand.

python spawn_before.py
"""

import os
from collections import Counter

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS, BATCH = 4, 64


def make_model():
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load(first, last):
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.from_numpy(images[first:last] / 16).float(), torch.from_numpy(labels[first:last]))


def run_epoch(model, loader, optimizer=None):
    counts = Counter()
    for images, labels in loader:
        logits = model(images)
        loss = nn.functional.cross_entropy(logits, labels)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        counts.update(loss=loss.item() * len(labels), right=(logits.argmax(1) == labels).sum().item(), n=len(labels))
    return counts


def gathered(counts, rank, world_size):
    parts = [None] * world_size if rank == 0 else None
    dist.gather_object(counts, parts, dst=0)
    return sum(parts, Counter()) if rank == 0 else None


def main(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = os.environ.get("PORT", "12355")
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    train, val = load(0, 1500), load(1500, 1797)
    sampler = DistributedSampler(train)
    train_loader = DataLoader(train, batch_size=BATCH // world_size, sampler=sampler)
    val_loader = DataLoader(val, batch_size=BATCH // world_size, sampler=DistributedSampler(val, shuffle=False))
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        train_counts = gathered(run_epoch(model, train_loader, optimizer), rank, world_size)
        with torch.no_grad():
            val_counts = gathered(run_epoch(model, val_loader), rank, world_size)
        if rank == 0:
            print(
                f"epoch {epoch}: loss {train_counts['loss'] / train_counts['n']:.4f}, "
                f"accuracy {val_counts['right'] / val_counts['n']:.4f} of {val_counts['n']}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, args=(2,), nprocs=2)
