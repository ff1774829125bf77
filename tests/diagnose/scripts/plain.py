"""A plain DDP script, right as it stands; --bugs plants the classic ones."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset, random_split

from rankwise.diagnose import note

BUGS = ("no_set_epoch", "mean_of_means", "padded_evaluation", "unsynchronised_move", "rank_dependent_split")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bugs", default="")
    bugs = parser.parse_args().bugs.split(",")
    assert set(bugs) <= {"", *BUGS}
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x = torch.randn(31, 4, dtype=torch.float64)
    dataset = TensorDataset(x, (x.sum(1) > 0).long(), torch.arange(31) % 5 + 1.0)
    drawn = torch.Generator().manual_seed(rank if "rank_dependent_split" in bugs else 0)
    train, held_out = random_split(dataset, [24, 7], generator=drawn)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=8 // size, sampler=sampler)
    if "padded_evaluation" in bugs:
        val = DataLoader(held_out, batch_size=4, sampler=DistributedSampler(held_out, shuffle=False))
    else:
        val = DataLoader(Subset(held_out, range(rank, 7, size)), batch_size=4)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    if "unsynchronised_move" not in bugs:
        module = module.double()
    model = DistributedDataParallel(module)
    if "unsynchronised_move" in bugs:
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        model.double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for epoch in range(2):
        if "no_set_epoch" not in bugs:
            sampler.set_epoch(epoch)
        for inputs, labels, tokens in loader:
            optimizer.zero_grad()
            losses = cross_entropy(model(inputs), labels, reduction="none")
            loss = (losses * tokens).sum() / tokens.sum() if "mean_of_means" in bugs else losses.mean()
            loss.backward()
            optimizer.step()
        sums = torch.zeros(2, dtype=torch.float64)
        with torch.no_grad():
            for inputs, labels, _ in val:
                sums += torch.stack([(model.module(inputs).argmax(1) == labels).sum(), torch.tensor(len(labels))])
        dist.all_reduce(sums)
        note(accuracy=sums[0] / sums[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
