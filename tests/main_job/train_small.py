"""The training script of the restart tests: small data on disk, every used sample id written down.

Runs under python, torchrun and rankwise run; RANKWISE_TEST_FAULT injects a fault (see rankwise.testing.Fault).
"""

import argparse
import hashlib
import json
import os
from pathlib import Path

import torch
from torch import nn

import rankwise
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.testing import Fault
from rankwise.train import Hooks, unwrapped


def make_model(plain):
    """Batch statistics and dropout are what a restart loses first; plain is one function at any world size."""
    extras = [] if plain else [nn.BatchNorm1d(32), nn.Dropout(0.1)]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), *extras, nn.Tanh(), nn.Linear(32, 10)).double()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--plain", action="store_true")
    args = parser.parse_args()
    fault = Fault.from_environment()
    with rankwise.bind(threads=1, timeout=60) as world:
        source = ArraySource.open(args.store, fields=("image", "label"))
        order = rankwise.Order(source, batch_size=20)
        model = make_model(args.plain)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        used = []

        def step(model, batch):
            if model.training:
                used.append(batch.ids.tolist())
            logits = model(batch["image"].double() / 16)
            losses = nn.functional.cross_entropy(logits, batch["label"], reduction="none")
            return losses, {"accuracy": logits.argmax(1) == batch["label"]}

        def write_ids(trainer, report):
            run, done = trainer.session.run_dir, trainer.session.progressed.num_steps
            line = {"attempt": run.attempt, "step": done, "epoch": epoch_of(report), "ids": used[-1]}
            with (run.path / f"ids-{os.getpid()}.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            if fault is not None:
                fault.strike(rank=world.rank, step=done, attempt=run.attempt)

        trainer = rankwise.Trainer(
            model, optimizer, step, hooks=Hooks(step_end=write_ids), save_every=4, log_every=3, progress=False
        )
        result = trainer.fit(SampleLoader(source, order=order, world=world), epochs=args.epochs)
        if world.is_main:
            digest = hashlib.sha256()
            for name, value in unwrapped(trainer.model).state_dict().items():
                digest.update(name.encode() + value.numpy().tobytes())
            report = {"digest": digest.hexdigest(), "steps": result.num_steps, "metrics": dict(result.metrics)}
            flat = torch.cat([p.detach().flatten() for p in unwrapped(trainer.model).parameters()])
            torch.save(flat, Path(result.run_dir) / "parameters.pt")
            (Path(result.run_dir) / "result.json").write_text(json.dumps(report))


def epoch_of(report):
    """The epoch that the step belonged to: the state after an epoch's last step is the next one's start."""
    return report.resume.epoch - (report.resume.position == 0)


if __name__ == "__main__":
    main()
