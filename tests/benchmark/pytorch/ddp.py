"""PyTorch as a peer: DistributedDataParallel over gloo, one process for each worker. Imports no TensorFlow.

Written for speed: bytes in memory; gather, augmentation and scaling of a whole batch at once; the faster memory layout;
the fused optimizer; gradients as views of DDP's buckets; one thread, because a worker has one core.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.benchmark import workloads
from tests.benchmark.pytorch import models
from tests.benchmark.workloads import Workload
from tfdist import config as config_lib
from tfdist.cluster.discovery import environment


def ddp(job: dict[str, Any], folder: Path) -> dict[str, Callable[[int], None]]:
    """A training step of `job["workload"]`, by name; one worker uses the bare module, without DDP.

    Args:
        job: `bfloat16` turns on autocast, `compiled` torch.compile.
        folder: holds the data.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    workload = workloads.of_job(job)
    device = "cuda" if job.get("gpus") else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True  # As TensorFlow does by default.
    torch.backends.cudnn.benchmark = True
    # Measured on a CPU, channels first and last: 210 and 237 ms a step for this case, 259 and 212 for the others.
    first = job["workload"] == "resnet50v2" and not job["bfloat16"] and device == "cpu"
    layout = torch.contiguous_format if first else torch.channels_last
    model = models.network(job["workload"]).to(device, memory_format=layout)
    if job.get("compiled"):
        model.compile()
    rank, workers = _join()
    if workers > 1:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
    batches = _batches(workload, folder, rank, workers, device)
    arithmetic = torch.autocast(device, torch.bfloat16) if job["bfloat16"] else contextlib.nullcontext()

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
    options = config_lib.ClusterOptions()
    place = environment.resolve(os.environ, port_base=options.port_base, port_count=options.port_count)
    if place.num_workers > 1:
        torch.distributed.init_process_group(
            "gloo", f"tcp://{place.addresses[0]}", rank=place.rank, world_size=place.num_workers
        )
    return place.rank, place.num_workers


def _batches(
    workload: Workload, folder: Path, rank: int, workers: int, device: str
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    with np.load(workloads.data_file(workload, folder)) as file:  # All in the device's memory.
        images, labels = (torch.from_numpy(file[name]).to(device) for name in ("x_train", "y_train"))
    order = torch.Generator().manual_seed(0)  # The same on all workers.
    global_batch = workload.batch * workers
    while True:
        epoch = torch.randperm(len(images), generator=order).to(device)
        for start in range(rank * workload.batch, len(images) - global_batch + 1, global_batch):
            chosen = epoch[start : start + workload.batch]
            batch = images[chosen]
            if workload.pad:
                batch = _augmented(batch, workload.pad)
            yield batch.permute(0, 3, 1, 2).float() / 255.0, labels[chosen]


def _augmented(images: torch.Tensor, pad: int) -> torch.Tensor:
    """Crops and flips uint8 [n, height, width, channels], each image independently."""
    count, height, width, _ = images.shape
    padded = functional.pad(images, (0, 0, pad, pad, pad, pad))
    on = {"device": images.device}
    rows = torch.arange(height, **on) + torch.randint(2 * pad + 1, (count, 1), **on)
    columns = torch.arange(width, **on) + torch.randint(2 * pad + 1, (count, 1), **on)
    columns = torch.where(torch.rand(count, 1, **on) < 0.5, columns.flip(1), columns)
    return padded[torch.arange(count, **on)[:, None, None], rows[:, :, None], columns[:, None, :]]
