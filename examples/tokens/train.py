"""Train a small language model on Python's own documentation, byte by byte, on any number of ranks.

    rankwise run --nproc 2 examples/tokens/train.py

The same file runs as ``python examples/tokens/train.py`` on one rank, and under torchrun. The text is what ``help()``
shows of Python's language, and lies in the standard library.
"""

from __future__ import annotations

import argparse
import hashlib
import math
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.functional import scaled_dot_product_attention as attention

import rankwise
from rankwise.data.samples import DatasetLoader
from rankwise.train import FitResult

CONTEXT, HEADS = 256, 4  # most bytes of a document; heads of attention


class Documents(torch.utils.data.Dataset[torch.Tensor]):
    """Document i is int64[length + 2]: its bytes between zeros, which occur nowhere else."""

    def __init__(self, texts: list[bytes]) -> None:
        self.texts = texts
        self.fingerprint = hashlib.sha256(b"\0".join(texts)).hexdigest()  # another Python's text is another run

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([0, *self.texts[index], 0])


def make_documents() -> tuple[Documents, Documents]:
    """Return those to train on and those held out: paragraphs, each text once; every eighth topic is held out."""
    parts: tuple[dict[bytes, None], dict[bytes, None]] = ({}, {})
    for number, name in enumerate(sorted(topics)):
        for text in topics[name].encode().split(b"\n\n"):
            pieces = [text.strip(b"\n")[at : at + CONTEXT] for at in range(0, len(text), CONTEXT)]
            parts[number % 8 == 7].update(dict.fromkeys(filter(None, pieces)))
    return Documents(list(parts[0])), Documents([text for text in parts[1] if text not in parts[0]])


def pack(documents: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Lay the documents of a micro-batch end to end, without padding: int64[tokens]."""
    return {
        "token": torch.cat([tokens[:-1] for tokens in documents]),
        "next": torch.cat([tokens[1:] for tokens in documents]),
        "place": torch.cat([torch.arange(len(tokens) - 1) for tokens in documents]),
        "lengths": torch.tensor([len(tokens) - 1 for tokens in documents]),  # int64[documents]
    }


class Block(nn.Module):
    """Attention and a small network, each added to what comes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        """[tokens, width] to the same; a token looks at those before it in its own document."""
        asked = self.qkv(self.before(x)).view(len(x), 3, HEADS, -1).permute(1, 2, 0, 3)
        found = torch.cat([attention(*document, is_causal=True) for document in asked.split(lengths, dim=2)], dim=1)
        x = x + self.out(found.transpose(0, 1).reshape(x.shape))
        return x + self.mlp(x)


class TokenModel(nn.Module):
    """A transformer that says what byte comes next; documents of one pack do not see each other."""

    def __init__(self, width: int = 96, depth: int = 2) -> None:
        super().__init__()
        self.token = nn.Embedding(256, width)
        self.place = nn.Embedding(CONTEXT + 1, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)

    def forward(self, batch: Any) -> torch.Tensor:
        """Return logits, [tokens, 256]."""
        x = self.token(batch["token"]) + self.place(batch["place"])
        for block in self.blocks:
            x = block(x, batch["lengths"].tolist())
        return self.head(self.norm(x))


def step(model: nn.Module, batch: Any) -> Any:
    """Return the *sum* of the losses and the number of tokens: the mean is over the tokens of the global batch."""
    losses = cross_entropy(model(batch).float(), batch["next"], reduction="sum")
    return losses, len(batch["next"])


def fit(world: rankwise.World, args: argparse.Namespace, **options: Any) -> FitResult:
    """Train and validate; `options` are further ones of the trainer."""
    documents, held_out = make_documents()
    order = rankwise.Order(documents, batch_size=args.batch_size)
    once = rankwise.Order(held_out, batch_size=args.batch_size, kind="sequential")
    train = DatasetLoader(documents, order=order, micro_batch=args.micro_batch, collate_fn=pack)
    val = DatasetLoader(held_out, order=once, micro_batch=args.micro_batch, collate_fn=pack)

    model = TokenModel()
    trainer = rankwise.Trainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        step,
        world=world,
        strategy=args.strategy,
        ddp={"units": model.blocks} if args.strategy == "fsdp" else None,  # one block is gathered at a time
        precision=None if args.precision == "float32" else args.precision,
        max_grad_norm=1.0,
        **{"save_every": 20, "log_every": 5, "limit_steps": args.limit_steps, **options},
    )
    return trainer.fit(train, val=val, epochs=args.epochs)


def main() -> None:
    """Parse the command line, train, say how well the next byte is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32, help="documents; global, at any world size")
    parser.add_argument("--micro-batch", type=int, default=8, help="most documents of one rank in one pass")
    parser.add_argument("--strategy", choices=["ddp", "zero1", "fsdp"], default="fsdp")
    parser.add_argument("--precision", choices=["float32", "bf16", "fp16"], default="bf16")
    parser.add_argument("--limit-steps", type=int, help="end early, to try it out")
    args = parser.parse_args()

    with rankwise.bind() as world:
        result = fit(world, args)
        if world.is_main:
            found = math.exp(result.metrics["val_loss"])
            print(f"perplexity {found:.2f} a byte on text that was held out, after {result.num_steps} steps")


if __name__ == "__main__":
    main()
