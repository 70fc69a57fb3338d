"""Images/s of one core from files of large images: `python -m tests.benchmark.input_files`.

2,000 made JPEGs of about 500x400 pixels, Inception's random crop to 224, a batch of 64: from a folder of files,
TFRecord and ArrayRecord, beside the classic tf.data pipeline.
All take turns of one pass in one run, each in its own process on the same core. The files are in the page cache. The
table has medians of the images in a second, and in a second of CPU time, which other work changes less.
"""

import statistics
import tempfile
from pathlib import Path

from absl import app, flags

from tests.benchmark import messages, rounds, sections
from tfdist.launch import processes
from tfdist.tools import measure as measure_lib
from tfdist.tools import tables

_CLASSIC = "tf.data, TFRecord"
_PARTICIPANTS = {
    _CLASSIC: ("classic_input", "tfrecord"),
    "tf.data, files": ("classic_input", "files"),
    "tfdist, folder of files": ("input", "files"),
    "tfdist, TFRecord by index": ("input", "tfrecord"),
    "tfdist, ArrayRecord": ("input", "array_record"),
}
HEADER = ("", "images/s", "images/s of CPU time", f"times {_CLASSIC}", "peak MB")


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_integer("images", 2000, "Number of images.", lower_bound=64)
    flags.DEFINE_integer("rounds", 5, "Number of turns of each participant.", lower_bound=1)


def measure(folder: Path, images: int, count: int) -> list[tuple]:
    """Writes the images and measures all participants; returns a row of `HEADER` for each."""
    from tests.benchmark import input_pipelines  # With TensorFlow.

    input_pipelines.write_large(folder, images)
    jobs = {name: sections.make_job(kind, images="large", form=form) for name, (kind, form) in _PARTICIPANTS.items()}
    batch = input_pipelines.BATCHES["large"]
    steps = images // batch
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    with rounds.start(jobs, folder, pin=True) as participants:
        for turn in range(count + 1):
            for participant in participants if turn % 2 else reversed(participants):
                seconds = participant.turn("step", steps)
                participant.turn("end", 0)
                if turn:  # The first turn warms up.
                    taken[participant.name].append(seconds)
        peaks = {participant.name: participant.peak_mb for participant in participants}
    rates = {
        name: [steps * batch / statistics.median(column) for column in zip(*turns, strict=True)]
        for name, turns in taken.items()
    }
    classic = rates[_CLASSIC][1]
    return [
        (name, round(clock), round(cpu), round(cpu / classic, 2), round(peaks[name]))
        for name, (clock, cpu) in rates.items()
    ]


def main(argv: list[str]) -> None:
    """Runs the benchmark after its flags are parsed."""
    values = flags.FLAGS
    with (
        messages.one_message("tests.benchmark.input_files"),
        processes.cleanup_on_sigterm(),
        tempfile.TemporaryDirectory(prefix="tfdist-benchmark-") as folder,
    ):
        rows = measure(Path(folder), values.images, values.rounds)
        print(f"{measure_lib.machine()}\n{tables.text(HEADER, rows)}")


if __name__ == "__main__":
    define_flags()
    app.run(main)
