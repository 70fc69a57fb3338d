"""Images/s of one core from files of large images: `python -m tests.benchmark.input_files`.

2,000 made JPEGs of about 500x400 pixels, Inception's random crop to 224, a batch of 64: from a folder of files,
TFRecord, ArrayRecord, and the files of `tfdist prepare --size=256`; beside the classic tf.data pipeline.
All take turns of one pass in one run, each in its own process on the same core. The files are in the page cache. The
table has medians of the images in a second, and in a second of CPU time, which other work changes less.
"""

import statistics
import tempfile
from pathlib import Path

from absl import app, flags

from tests.benchmark import messages, rounds, sections
from tfdist.launch import processes
from tfdist.report import files
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
# https://docs.ffcv.io/benchmarks.html: images/s of all 96 vCPUs of a p3dn.24xlarge, random resized crop to 224 and
# flip, from memory; of JPEGs of quality 90 at 512 pixels, and of raw pixels at 256. Normalised on the GPU.
_FFCV = {"FFCV, published, JPEG 512, a vCPU": 31278 / 96, "FFCV, published, raw 256, a vCPU": 172801 / 96}
HEADER = ("", "images/s", "images/s of CPU time", f"times {_CLASSIC}", "peak MB")


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_integer("images", 2000, "Number of images.", lower_bound=64)
    flags.DEFINE_integer("rounds", 5, "Number of turns of each participant.", lower_bound=1)
    flags.DEFINE_string("json", None, "Also write the numbers to this file.")


def measure(folder: Path, images: int, count: int) -> list[dict]:
    """Writes the images and measures all participants; returns a dict for each, as the table shows it."""
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
    read = steps * batch
    rows = []
    for name, turns in taken.items():
        clock, cpu = (read / statistics.median(column) for column in zip(*turns, strict=True))
        rows.append({"name": name, "images_per_second": clock, "images_per_cpu_second": cpu, "peak_mb": peaks[name]})
    reference = next(row for row in rows if row["name"] == _CLASSIC)["images_per_cpu_second"]
    return [row | {"ratio": row["images_per_cpu_second"] / reference} for row in rows]


def show(rows: list[dict]) -> None:
    """Prints the table."""
    cells = [
        (
            row["name"],
            round(row["images_per_second"]),
            round(row["images_per_cpu_second"]),
            round(row["ratio"], 2),
            round(row["peak_mb"]),
        )
        for row in rows
    ]
    cells += [(name, round(rate), "", "", "") for name, rate in _FFCV.items()]
    print(f"{measure_lib.machine()}\n{tables.text(HEADER, cells)}", flush=True)


def main(argv: list[str]) -> None:
    """Runs the benchmark after its flags are parsed."""
    values = flags.FLAGS
    with (
        messages.one_message("tests.benchmark.input_files"),
        processes.cleanup_on_sigterm(),
        tempfile.TemporaryDirectory(prefix="tfdist-benchmark-") as folder,
    ):
        rows = measure(Path(folder), values.images, values.rounds)
        if values.json:
            files.write_json(values.json, {"machine": measure_lib.machine(), "rows": rows})
        show(rows)


if __name__ == "__main__":
    define_flags()
    app.run(main)
