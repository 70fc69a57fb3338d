"""The public speed record of CIFAR-10 in its own PyTorch code, on the CPU and on a folder of images.

    git clone https://github.com/KellerJordan/cifar10-airbench
    python -m tests.benchmark.pytorch.airbench cifar10-airbench/airbench94_muon.py FOLDER --epochs=6 --seeds=0,1,2

FOLDER has train/CLASS/NAME.jpg and test/CLASS/NAME.jpg. Of the record's code only the device, the dtype, the number of
epochs and the path of the images are replaced: see `_REPLACED`. After each epoch it prints the record's own columns:
`val_acc` is the accuracy on the test images, `time_seconds` the seconds of training so far. Needs PyTorch,
torchvision and Pillow.
"""

import argparse
import pathlib
import sys
import tempfile
import time
import types
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image

# Each text occurs in the record's code; a file without one of them is another version, and refused.
_REPLACED = {
    'torch.device("cuda")': 'torch.device("cpu")',
    "torch.cuda.Event(enable_timing=True)": "CLOCK()",
    "torch.cuda.synchronize()": "None",
    ".half()": ".to(DTYPE)",
    "ceil(8 * len(train_loader))": "ceil(EPOCHS * len(train_loader))",
    '"cifar10", train=': "FOLDER, train=",
    "@torch.compile\n": "",
}


class Clock:
    """What the record uses of `torch.cuda.Event`, on the computer's clock."""

    def record(self) -> None:
        """Keeps the time in seconds."""
        self.seconds = time.monotonic()

    def elapsed_time(self, end: "Clock") -> float:
        """Returns the milliseconds between two records."""
        return 1e3 * (end.seconds - self.seconds)


def _examples(folder: pathlib.Path) -> Iterator[tuple[np.ndarray, int]]:
    """Yields the images, uint8 [32, 32, 3], and the number of the class of each."""
    classes = sorted(one.name for one in folder.iterdir())
    for path in sorted(folder.glob("*/*")):
        with Image.open(path) as image:
            yield np.asarray(image), classes.index(path.parent.name)


def save_images(folder: pathlib.Path, output: pathlib.Path) -> None:
    """Writes the images and labels of `folder` to train.pt and test.pt, the files that the record reads."""
    for split in ("train", "test"):
        images, labels = zip(*_examples(folder / split), strict=True)
        content = {"images": torch.tensor(np.stack(images)), "labels": torch.tensor(labels), "classes": None}
        torch.save(content, output / f"{split}.pt")


def load_record(path: str, folder: str, epochs: float) -> types.ModuleType:
    """Returns the record's code as a module that trains on the CPU.

    Raises:
      SystemExit: the file lacks a text that must be replaced.
    """
    code = pathlib.Path(path).read_text(encoding="utf-8")
    for old, new in _REPLACED.items():
        if old not in code:
            sys.exit(f"{path} has no {old!r}: this program knows airbench94_muon.py of November 2024")
        code = code.replace(old, new)
    module = types.ModuleType("airbench")
    module.__dict__.update(CLOCK=Clock, DTYPE=torch.bfloat16, EPOCHS=epochs, FOLDER=folder)
    exec(compile(code, path, "exec"), module.__dict__)
    return module


def main() -> None:
    """Trains once with each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("record")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--epochs", type=float, default=6.0)
    parser.add_argument("--seeds", default="0")
    flags = parser.parse_args()
    sys.argv = [flags.record]  # The record reads its own file, whose name is the first word of the command.
    sys.stdout.reconfigure(line_buffering=True)
    with tempfile.TemporaryDirectory() as folder:
        save_images(flags.folder, pathlib.Path(folder))
        record = load_record(flags.record, folder, flags.epochs)
        for seed in flags.seeds.split(","):
            torch.manual_seed(int(seed))
            model = record.CifarNet().to(memory_format=torch.channels_last)
            record.print_columns(record.logging_columns_list, is_head=True)
            record.main(int(seed), model)


if __name__ == "__main__":
    main()
