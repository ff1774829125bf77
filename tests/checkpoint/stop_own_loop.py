"""A loop of one's own that asks `Checkpointer.should_stop` after each step; one rank is signalled, see the test."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch

import rankwise
from rankwise.checkpoint import Checkpointer, Replicated
from rankwise.errors import Interrupted

MOST = 100_000  # nobody gets there: it is asked to stop


def make_training():
    """Return a model and an optimizer whose momentum a resumed run has to bring along."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1).double()
    return model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def gradients(model, step, rank):
    """Return one rank's gradients of a step."""
    generator = torch.Generator().manual_seed(2 * step + rank)
    inputs = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().sum()
    return torch.autograd.grad(loss, list(model.parameters()))


def take_step(model, optimizer, summed):
    """Step with what the ranks' gradients add up to."""
    for parameter, gradient in zip(model.parameters(), summed, strict=True):
        parameter.grad = gradient / 8
    optimizer.step()


def undisturbed(steps):
    """Return the model's state after steps of two ranks, taken by this process alone."""
    model, optimizer = make_training()
    for step in range(1, steps + 1):
        both = zip(*(gradients(model, step, rank) for rank in (0, 1)), strict=True)
        take_step(model, optimizer, [first + second for first, second in both])
    return model.state_dict()


def check_stop(folder, name, begin):
    """Both ranks began after this step, stopped after the same one, at least five on; return it and their states."""
    told = [torch.load(folder / f"{name}-{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert told[0][:2] == told[1][:2]
    assert told[0][0] == begin
    assert told[0][1] >= begin + 5
    return told[0][1], [state for _, _, state in told]


def check_states(states, step):
    """They are, bit for bit, those of a run that nobody disturbed."""
    wanted = undisturbed(step)
    for state in states:
        assert all(torch.equal(state[name], value) for name, value in wanted.items())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("rank", type=int, help="who is signalled; -1: from outside, once there is a file *.begun")
    parser.add_argument("signal")
    args = parser.parse_args()
    with rankwise.bind(device="cpu", threads=1, timeout=240) as world:
        model, optimizer = make_training()
        parts = {"model": Replicated(model), "optimizer": Replicated(optimizer)}
        with Checkpointer(args.folder / "checkpoints", world=world) as checkpointer:
            report = checkpointer.restore(parts)
            begin = report.step if report else 0
            for done in range(begin + 1, MOST):
                take_step(model, optimizer, world.all_reduce(list(gradients(model, done, world.rank))))
                if done == begin + 5 and world.rank == args.rank:
                    os.kill(os.getpid(), getattr(signal, args.signal))
                elif done == begin + 5:
                    (args.folder / f"{args.signal}-{world.rank}.begun").touch()
                if checkpointer.should_stop(done):
                    checkpointer.save(done, parts)
                    torch.save([begin, done, model.state_dict()], args.folder / f"{args.signal}-{world.rank}.pt")
                    world.barrier()  # once one rank has ended its launcher ends the other
                    raise Interrupted
                time.sleep(0.02)  # a step's work: fewer of them until the ranks agree
    sys.exit("nobody asked it to stop")


if __name__ == "__main__":
    main()
