"""Compares accuracies with virtual replicas and with float sums: `python -m tests.benchmark.virtual_accuracy`.

configs/digits.py, and such a network on small images of a folder (`--images=DIR` with train/CLASS/ and test/CLASS/),
over five seeds. Both ways normalise over the same groups of examples, so they differ in the rounding of sums only.
`--keep=DIR` keeps the runs, and trains only those that are not there yet.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile

from tests.benchmark import same_bits

VIRTUAL = 4
KINDS = {"float sums": "none", f"{VIRTUAL} virtual replicas": str(VIRTUAL)}


def fields(images: str) -> dict[str, tuple[str, ...]]:
    """Fields of the config for each network: batches of 64, and normalisation over groups of 16."""
    found = {"digits": ("train.epochs=10", "checkpoint.every.epochs=10", "evaluation.every.epochs=10")}
    if images:
        source = f"{{'target': 'tfdist.zoo.sources:image_folder', 'path': '{images}', 'size': (32, 32)}}"
        shape = "'input_shape': (32, 32, 3), 'filters': (16, 32), 'group_size': 16"
        model = f"{{'target': 'tfdist.zoo.models:small_cnn', 'num_classes': 10, {shape}}}"
        found["CIFAR-10, 5,000 images"] = (
            f"data.source={source}",
            f"model={model}",
            "data.prepare={'target': 'tfdist.zoo.prepare:image', 'flip': True}",
            *("data.train_split=train[:10%]", "data.evaluation_split=test[:20%]", "data.evaluation_batch_size=80"),
            *("train.epochs=4", "checkpoint.every.epochs=4", "evaluation.every.epochs=4"),
        )
    return found


def train(workdir: pathlib.Path, options: tuple[str, ...], kind: str, seed: int) -> tuple[float, float]:
    """Trains, and returns loss and accuracy of the last evaluation."""
    all_options = (*options, f"train.virtual_replicas={kind}", f"seed={seed}", "report.tensorboard=false")
    if not (workdir / "finished.json").is_file():
        line = [sys.executable, "-m", "tfdist.main", "--config=configs/digits.py", f"--workdir={workdir}"]
        line += [f"--config.{option}" for option in (*all_options, "checkpoint.export=false")]
        log = workdir.with_suffix(".log")
        same_bits.wait(same_bits.start(line, 1, log), log)
    last = same_bits.records(workdir, "evaluation")[-1]
    return last["loss"], last["accuracy"]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", default="")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--keep", default="")
    flags = parser.parse_args()
    print("| data | sums | accuracy of each seed | mean and deviation | loss |\n" + "| --- " * 5 + "|", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(flags.keep or scratch)
        folder.mkdir(exist_ok=True)
        for name, options in fields(flags.images).items():
            for kind, value in KINDS.items():
                found = [
                    train(folder / f"{name.split()[0]}-{value}-{seed}", options, value, seed)
                    for seed in range(flags.seeds)
                ]
                losses, accuracies = zip(*found, strict=True)
                each = ", ".join(f"{100 * one:.1f}" for one in accuracies)
                mean, deviation = statistics.mean(accuracies), statistics.stdev(accuracies)
                loss = f"{statistics.mean(losses):.4f} ± {statistics.stdev(losses):.4f}"
                print(f"| {name} | {kind} | {each} | {100 * mean:.2f} ± {100 * deviation:.2f} % | {loss} |", flush=True)


if __name__ == "__main__":
    main()
