"""Draws docs/example_curves.svg: losses of Keras' examples that draw random numbers, under Keras and under tfdist.run.

usage: python docs/example_curves.py [--seeds=3] [--directory=DIR]

Each example of tests/scripts/examples is trained with several seeds, of the weights and of the random numbers, by Keras
on one device and by tfdist.run on two logical devices. Needs matplotlib. Lines: a seed; the table that is printed: mean
and standard deviation over the seeds in the last epoch.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from tfdist.tools.pictures import style

ROOT = pathlib.Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "example_curves.svg"
# The example, with its epochs if they are not the script's, and the losses that are drawn.
EXAMPLES = {
    "vae": ("loss",),
    "masked_autoencoder": ("val_loss",),
    "mixup:8": ("val_loss",),
    "diffusion:8": ("val_n_loss",),
    "dcgan:8": ("d_loss", "g_loss"),
    "conditional_gan:8": ("d_loss", "g_loss"),
    "wgan_gp:8": ("d_loss", "g_loss"),
}
PANELS = [(name, loss) for name, losses in EXAMPLES.items() for loss in losses]
WAYS = {"Keras, one device": [], "tfdist.run, two devices": ["-m", "tfdist.run", "--logical_devices=2"]}


def train(directory: pathlib.Path, way: str, seed: int) -> dict[str, dict[str, list[float]]]:
    """Returns the history of each example; what is in `directory` already is not trained again."""
    out = directory / f"{list(WAYS).index(way)}-{seed}"
    names = [name for name in EXAMPLES if not (out / f"{name.partition(':')[0]}.json").exists()]
    if names:
        out.mkdir(parents=True, exist_ok=True)
        script = [str(ROOT / "tests/scripts/examples/run_each.py"), str(out), f"--seed={seed}"]
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        subprocess.run(
            [sys.executable, *WAYS[way], *script, *names],
            env=os.environ | {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""},
            cwd=out,
            check=True,
        )
    return {name: json.loads((out / f"{name.partition(':')[0]}.json").read_text()) for name in EXAMPLES}


def draw(found: dict[str, list[dict[str, dict[str, list[float]]]]]) -> Any:
    """Returns a figure with a panel for each loss."""
    seeds = len(next(iter(found.values())))
    figure, axes = style.figure(
        "Examples that draw random numbers",
        f"A line for each of {seeds} seeds of weights and random numbers; tests/scripts/examples, on CPUs.",
        columns=5,
        rows=2,
        size=(20.0, 7.0),
    )
    for ax, (name, loss) in zip(axes, PANELS, strict=True):
        for index, histories in enumerate(found.values()):
            for history in histories:
                values = history[name][loss]
                line = {"color": style.COLORS[index], "linewidth": 1.3, "linestyle": ("-", "--")[index]}
                ax.plot(range(1, len(values) + 1), values, **line)
        ax.set(title=f"{name.partition(':')[0].replace('_', ' ')}: {loss}", xlabel="epoch")
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=style.COLORS[index], linestyle=("-", "--")[index], label=way)
        for index, way in enumerate(found)
    ]
    style.legend(figure, handles)
    return figure


def main() -> None:
    """Trains, prints the table and draws."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default=3, type=int)
    parser.add_argument("--directory", help="for the histories; what is there already is not trained again")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(flags.directory or temporary).absolute()
        # In turn, so that an interrupted measurement has as many seeds of both.
        trained = [{way: train(directory, way, seed) for way in WAYS} for seed in range(1, flags.seeds + 1)]
        found = {way: [one[way] for one in trained] for way in WAYS}
        print("| example | loss | epoch |", " | ".join(WAYS), "|")
        print("| --- | --- | --- |", " | ".join("---" for _ in WAYS), "|")
        for name, loss in PANELS:
            last = [np.array([history[name][loss] for history in histories])[:, -1] for histories in found.values()]
            epochs = len(trained[0][next(iter(WAYS))][name][loss])
            cells = [f"{values.mean():.3g} +- {values.std(ddof=1):.2g}" for values in last]
            print(f"| {name.partition(':')[0]} | {loss} | {epochs} |", " | ".join(cells), "|")
        print(style.save(directory / PICTURE.stem, lambda: draw(found)))
        shutil.copy(directory / PICTURE.name, PICTURE)


if __name__ == "__main__":
    main()
