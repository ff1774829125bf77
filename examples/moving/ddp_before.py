"""Handwritten digits with plain DistributedDataParallel.

torchrun --standalone --nproc_per_node 2 ddp_before.py
"""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler

EPOCHS, BATCH_PER_RANK, ACCUMULATE, CHECKPOINT = 6, 32, 2, "digits.pt"


class Digits(Dataset):
    """1797 images of 8 x 8 pixels."""

    def __init__(self):
        images, labels = load_digits(return_X_y=True)
        self.images = torch.from_numpy(images / 16).float()
        self.labels = torch.from_numpy(labels).long()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def make_model():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))


def evaluate(model, loader, device):
    model.eval()
    correct = torch.zeros(2, device=device)
    with torch.no_grad():
        for images, labels in loader:
            hits = model(images.to(device)).argmax(1) == labels.to(device)
            correct += torch.tensor([hits.sum(), len(hits)], device=device)
    dist.all_reduce(correct)
    return (correct[0] / correct[1]).item()


def main():
    use_cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if use_cuda else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(0)

    data = Digits()
    train, val = Subset(data, range(1500)), Subset(data, range(1500, len(data)))
    sampler = DistributedSampler(train, shuffle=True)
    train_loader = DataLoader(train, batch_size=BATCH_PER_RANK, sampler=sampler, pin_memory=use_cuda)
    val_loader = DataLoader(val, batch_size=256, sampler=DistributedSampler(val, shuffle=False))

    model = make_model().to(device)
    ddp = DistributedDataParallel(model, device_ids=[local_rank] if use_cuda else None)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    first_epoch = 0
    if os.path.exists(CHECKPOINT):
        saved = torch.load(CHECKPOINT, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first_epoch = saved["epoch"] + 1

    for epoch in range(first_epoch, EPOCHS):
        sampler.set_epoch(epoch)
        ddp.train()
        total = torch.zeros(1, device=device)
        for i, (images, labels) in enumerate(train_loader):
            last = (i + 1) % ACCUMULATE == 0 or i + 1 == len(train_loader)
            ddp.require_backward_grad_sync = last
            loss = nn.functional.cross_entropy(ddp(images.to(device)), labels.to(device))
            (loss / ACCUMULATE).backward()
            total += loss.detach()
            if last:
                nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        dist.all_reduce(total)
        accuracy = evaluate(model, val_loader, device)
        if rank == 0:
            mean = total.item() / dist.get_world_size() / len(train_loader)
            print(f"epoch {epoch}: loss {mean:.4f}, accuracy {accuracy:.4f}")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, CHECKPOINT)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
