"""The results of scaling studies, as scaling.json of a workdir holds them. Imports no TensorFlow."""

import dataclasses
import json
import statistics
from pathlib import Path

from tfdist.report import files

FILE = "scaling.json"
CAUSES = ("input", "compute", "communication")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One training run: its times, and what it reached."""

    replicas: int
    batch_size: int
    first_epoch_seconds: float
    # One value per later epoch.
    later_epoch_seconds: list[float]
    # In an epoch.
    examples: int
    # The objective's values in the last epoch, such as loss and accuracy.
    values: dict[str, float] = dataclasses.field(default_factory=dict)
    # Fractions of the later epochs in the order of `CAUSES`, 0 to 1, means over the workers; None: not measured.
    shares: list[float] | None = None

    @property
    def epoch_seconds(self) -> float:
        """Median of the later epochs."""
        return statistics.median(self.later_epoch_seconds)

    @property
    def examples_per_second(self) -> float:
        """In a later epoch, over all replicas."""
        return self.examples / self.epoch_seconds


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Trainings of one config on increasing numbers of replicas."""

    name: str
    # One line about the training and the machine.
    described: str
    points: list[Point]
    # Printed by a course, and not measured here: see configs/courses/published.
    published: bool = False

    def speedups(self) -> list[float]:
        """Examples per second relative to one replica of the first training."""
        base = self.points[0].examples_per_second / self.points[0].replicas
        return [point.examples_per_second / base for point in self.points]

    def seconds(self, point: Point) -> float:
        """Seconds for as many examples as an epoch of the first training has: larger batches may leave out a few."""
        return self.points[0].examples / point.examples_per_second

    def ideal_seconds(self, replicas: float) -> float:
        """Seconds of an epoch if each of `replicas` were as fast as one of the first training."""
        return self.points[0].epoch_seconds * self.points[0].replicas / replicas


def write(workdir: Path, study: Study) -> None:
    """Writes the study into the workdir, for `read`."""
    files.write_json(workdir / FILE, dataclasses.asdict(study))


def read(workdir: Path) -> Study:
    """Reads the study in the workdir of `tfdist scaling`; raises ValueError if the file is damaged."""
    # Other releases may write other fields of a point.
    path, known = workdir / FILE, {field.name for field in dataclasses.fields(Point)}
    try:
        found = json.loads(path.read_text())
        points = [Point(**{name: point[name] for name in point if name in known}) for point in found["points"]]
        return Study(**found | {"points": points})
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}): run tfdist scaling again.") from None


def reason(study: Study) -> str:
    """Returns why the speedup of the largest number of replicas is not linear, by the measured shares, or "".

    Its time is compared with the ideal, part by part. Communication includes waiting for the slowest worker.
    """
    first, last = study.points[0], study.points[-1]
    if last.replicas == first.replicas or first.shares is None or last.shares is None:
        return ""
    ideal, seconds = study.ideal_seconds(last.replicas), study.seconds(last)
    shares = zip(CAUSES, first.shares, last.shares, strict=True)
    more = {name: after * seconds - before * ideal for name, before, after in shares}
    speedup, linear = study.speedups()[-1], last.replicas
    if speedup >= 0.97 * linear:
        return f"On {last.replicas} replicas the speedup is {speedup:.2f}: at least linear, within measurement error."
    parts = ", ".join(f"{name} {seconds:+.3g} s" for name, seconds in sorted(more.items(), key=lambda each: -each[1]))
    return (
        f"On {last.replicas} replicas the speedup is {speedup:.2f} and not {linear}, mainly because of "
        f"{max(more, key=more.get)}: an epoch takes {seconds - ideal:.3g} s longer than the ideal {ideal:.3g} s "
        f"({parts})."
    )
