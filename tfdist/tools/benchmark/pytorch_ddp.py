"""PyTorch as a peer: DistributedDataParallel over gloo, a process a worker. Imports no TensorFlow.

As its users write it where speed matters: bytes in memory, gathered, augmented and scaled a batch at a time; the faster
memory layout; the fused optimizer; gradients that live in DDP's buckets; one thread, for a worker has one core.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tfdist import config as config_lib
from tfdist.cluster.discovery import environment
from tfdist.tools.benchmark import pytorch_models, workloads
from tfdist.tools.benchmark.workloads import WORKLOADS, Workload


def ddp(job: dict[str, Any], folder: Path) -> dict[str, Callable[[int], None]]:
    """A training step of `job["work"]`, by name; one worker has the bare module, without DDP.

    Args:
        job: with `bfloat16`, arithmetic goes through autocast; with `compressed`, gradients through DDP's own hook
            that makes them bfloat16 on the wire.
        folder: where the data are.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    work = WORKLOADS[job["work"]]
    # Channels first took 210 ms a step where they are faster, and last 237; elsewhere 259 and 212.
    first = job["work"] == "resnet50v2" and not job["bfloat16"]
    layout = torch.contiguous_format if first else torch.channels_last
    model = pytorch_models.network(job["work"]).to(memory_format=layout)
    rank, workers = _join()
    if workers > 1:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        if job["compressed"]:
            model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
    batches = _batches(work, folder, rank, workers)
    arithmetic = torch.autocast("cpu", torch.bfloat16) if job["bfloat16"] else contextlib.nullcontext()

    def run(steps: int) -> None:
        for _ in range(steps):
            images, labels = next(batches)
            optimizer.zero_grad()
            with arithmetic:
                loss = functional.cross_entropy(model(images.contiguous(memory_format=layout)), labels)
            loss.backward()
            optimizer.step()
        loss.item()

    return {"step": run}


def _join() -> tuple[int, int]:
    options = config_lib.Cluster()
    place = environment.resolve(os.environ, port_base=options.port_base, port_count=options.port_count)
    if place.num_workers > 1:
        torch.distributed.init_process_group(
            "gloo", f"tcp://{place.addresses[0]}", rank=place.rank, world_size=place.num_workers
        )
    return place.rank, place.num_workers


def _batches(work: Workload, folder: Path, rank: int, workers: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    with np.load(workloads.data_file(work, folder)) as file:
        images, labels = torch.from_numpy(file["x_train"]), torch.from_numpy(file["y_train"])
    order = torch.Generator().manual_seed(0)  # The same on all workers.
    global_batch = work.batch * workers
    while True:
        epoch = torch.randperm(len(images), generator=order)
        for start in range(rank * work.batch, len(images) - global_batch + 1, global_batch):
            chosen = epoch[start : start + work.batch]
            batch = images[chosen]
            if work.pad:
                batch = _augmented(batch, work.pad)
            yield batch.permute(0, 3, 1, 2).float() / 255.0, labels[chosen]


def _augmented(images: torch.Tensor, pad: int) -> torch.Tensor:
    """Crops and flips uint8 [n, height, width, channels], each image in its own way."""
    count, height, width, _ = images.shape
    padded = functional.pad(images, (0, 0, pad, pad, pad, pad))
    rows = torch.arange(height) + torch.randint(2 * pad + 1, (count, 1))
    columns = torch.arange(width) + torch.randint(2 * pad + 1, (count, 1))
    columns = torch.where(torch.rand(count, 1) < 0.5, columns.flip(1), columns)
    return padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
