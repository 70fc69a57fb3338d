"""`configs/char_gpt.py` in plain PyTorch, by nanoGPT's recipe: `python -m tests.benchmark.pytorch.char_gpt FILE`.

One process, without tfdist: pieces at random places of the text, and the output layer has the embedding's weights. The
evaluation is that of the config: the first 1,024 pieces of the last tenth of the text. Needs PyTorch and NumPy.
"""

import math
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

LENGTH, BATCH, STEPS, WARMUP, PEAK, PIECES = 64, 12, 2000, 100, 1e-3, 1024
LAYERS, HEADS, WIDTH = 4, 4, 128


class Block(nn.Module):
    """Attention and two dense layers, each with normalisation first."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, bias=False) for _ in range(2))
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.expand, self.contract = (
            nn.Linear(WIDTH, 4 * WIDTH, bias=False),
            nn.Linear(4 * WIDTH, WIDTH, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [n, characters, WIDTH] -> the same shape."""
        n, count, _ = x.shape
        parts = self.attention(self.norm1(x)).split(WIDTH, dim=2)
        parts = [one.view(n, count, HEADS, WIDTH // HEADS).transpose(1, 2) for one in parts]
        y = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(n, count, WIDTH))
        return x + self.contract(functional.gelu(self.expand(self.norm2(x))))


class Network(nn.Module):
    """The transformer; int64 [n, characters] -> logits [n, characters, classes]."""

    def __init__(self, classes: int):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(classes, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(WIDTH, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                last = name.endswith(("projection.weight", "contract.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * LAYERS) if last else 0.02)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Returns the logits."""
        x = self.embedding(numbers) + self.positions(torch.arange(numbers.shape[1]))
        return functional.linear(self.norm(self.blocks(x)), self.embedding.weight)


def main(path: str) -> None:
    """Trains on the text in `path`; prints losses and minutes."""
    torch.manual_seed(0)
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    known = {one: number for number, one in enumerate(sorted(set(text)))}
    numbers = torch.tensor([known[one] for one in text])
    pieces = (len(numbers) - 1) // LENGTH
    first = (pieces - max(1, round(0.1 * pieces))) * LENGTH
    training = numbers[: first + 1]
    places = range(first, first + PIECES * LENGTH, LENGTH)
    validation = [torch.stack([numbers[p + by : p + by + LENGTH] for p in places]) for by in (0, 1)]
    model = Network(len(known))
    weights = list(model.parameters())
    groups = [
        {"params": [one for one in weights if one.ndim == 2], "weight_decay": 0.1},
        {"params": [one for one in weights if one.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.99), fused=True)
    count, draws = sum(one.numel() for one in weights), np.random.default_rng(0)
    print(f"{count:,} parameters, {len(known)} characters, {torch.get_num_threads()} threads")
    began, in_training = time.monotonic(), 0.0
    for step in range(STEPS):
        rate = PEAK * (step + 1) / WARMUP
        if step >= WARMUP:
            rate = PEAK * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))))
        for group in optimizer.param_groups:
            group["lr"] = rate
        places = draws.integers(0, len(training) - LENGTH, BATCH)
        x, y = (torch.stack([training[p + by : p + by + LENGTH] for p in places]) for by in (0, 1))
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        if (step + 1) % 500 == 0:
            in_training += time.monotonic() - began
            with torch.no_grad():
                losses = [
                    functional.cross_entropy(model(a).flatten(0, 1), b.flatten()).item()
                    for a, b in zip(*(one.split(128) for one in validation), strict=True)
                ]
            print(f"step {step + 1}  loss {sum(losses) / len(losses):.4f}  {in_training / 60:.2f} min of training")
            began = time.monotonic()


if __name__ == "__main__":
    main(sys.argv[1])
