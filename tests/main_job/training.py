"""What the training scripts of this folder share: notes of what was used, faults, and the result."""

import hashlib
import json
import os
from pathlib import Path

import torch

import rankwise
from rankwise.checkpoint import interruption
from rankwise.testing import Fault
from rankwise.train import Hooks, unwrapped

STRIKE = None  # what befalls this process, see warm_ranks
interruption._MOST_CALLS = 1  # runs of a few steps: the ranks ask each other after each of them


class Noted:
    """A loader that remembers what it handed out for the current step: ``note(batch)`` of each of its batches."""

    def __init__(self, loader, note):
        self._loader, self._note = loader, note
        self.taken = []

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def __len__(self):
        return len(self._loader)

    def __iter__(self):
        for batches in self._loader:
            self.taken = [entry for batch in batches for entry in self._note(batch)]
            yield batches


def train(world, loader, model, step, *, note, epochs, val=None, lr=0.01, save_every=4):
    """Train with AdamW; write down what each step used, strike where a fault was asked for, leave the result."""
    fault, loader = Fault.from_environment(), Noted(loader, note)

    def write_notes(trainer, report):
        run, done = trainer.session.run_dir, trainer.session.progressed.num_steps
        line = {"attempt": run.attempt, "step": done, "epoch": epoch_of(report), "used": loader.taken}
        with (run.path / f"used-{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        if fault is not None:
            fault.strike(rank=world.rank, step=done, attempt=run.attempt)

    def struck_step(model, batch):
        if STRIKE is not None:
            STRIKE.meet("step" if model.training else "evaluate")
        return step(model, batch)

    trainer = rankwise.Trainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=lr),
        struck_step,
        hooks=Hooks(step_end=write_notes),
        save_every=save_every,
        log_every=3,
        progress=False,
    )
    result = trainer.fit(loader, val=val, epochs=epochs)
    if world.is_main:
        write_result(Path(result.run_dir), unwrapped(trainer.model), result)


def write_result(folder, model, result):
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode() + value.numpy().tobytes())
    report = {"digest": digest.hexdigest(), "steps": result.num_steps, "metrics": dict(result.metrics)}
    torch.save(torch.cat([p.detach().flatten() for p in model.parameters()]), folder / "parameters.pt")
    (folder / "result.json").write_text(json.dumps(report))


def epoch_of(report):
    """The epoch that the step belonged to: the state after an epoch's last step is the next one's start."""
    return report.resume.epoch - (report.resume.position == 0)
