"""Results that courses print, or their centres, from published.json: drawn behind one's own, with their hardware."""

import json
import math
from pathlib import Path

from absl import flags

from tfdist.tools.studies.results import Point, Study

_FILE = Path(__file__).with_name("published.json")


def names() -> list[str]:
    """Returns the names of the results."""
    return list(json.loads(_FILE.read_text()))


def define_flag() -> None:
    """Defines the flag --published; not at import, because several tools have it."""
    flags.DEFINE_list(
        "published",
        [],
        f"Also draw the results of a course or its centre, with their hardware: {', '.join(names())}. Default: none.",
    )


def study(name: str) -> Study:
    """Returns published results as a study.

    Raises:
        ValueError: there are none of this name.
    """
    every = json.loads(_FILE.read_text())
    if name not in every:
        raise ValueError(f"--published: there is no {name!r}; there are {', '.join(every)}.")
    found = every[name]
    nothing = [None] * len(found["replicas"])
    rates = found.get("images_per_second", nothing)
    seconds = found.get("epoch_seconds") or [found["examples"] / rate for rate in rates]
    first = found.get("first_epoch_seconds") or [math.nan] * len(nothing)
    columns = (found["replicas"], found["batch_size"], first, seconds, found.get("accuracy", nothing))
    return Study(
        name=found["name"],
        described=f"{found['source']}; {found['hardware']}",
        published=True,
        points=[
            Point(
                replicas=replicas,
                batch_size=batch,
                first_epoch_seconds=first,
                later_epoch_seconds=[seconds],
                examples=found["examples"],
                values={} if accuracy is None else {"accuracy": accuracy},
            )
            for replicas, batch, first, seconds, accuracy in zip(*columns, strict=True)
        ],
    )
