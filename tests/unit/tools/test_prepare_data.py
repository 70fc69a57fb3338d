"""`tfdist prepare` on a login node: fetches once, and opens both splits."""

import pathlib

import forked
import pytest
from launching import tfdist
from parameters import slow
from small_images import COUNTS

from tfdist import config as c
from tfdist.tools import prepare as prepare_data


def test_prepare_downloads_once_and_opens_both_splits(tmp_path):
    spec = {"target": "tfdist.zoo.sources:tfds", "name": "small_images", "data_dir": str(tmp_path)}
    times = []
    for _ in range(2):
        prepare = {"target": "tfdist.zoo.prepare:image", "resize": (4, 4)}
        data = c.Data(source=dict(spec), prepare=prepare, batch_size=8)
        config = c.Config(model={"target": "x:y"}, data=data, train=c.Train(epochs=1))
        rows = prepare_data.prepare(config)
        assert [row[:2] for row in rows] == [*COUNTS.items()] and "small_images" in rows[0][2]
        files = [path for path in pathlib.Path(tmp_path).rglob("*") if path.is_file()]
        times.append({str(path): path.stat().st_mtime_ns for path in files})
    assert times[0] == times[1] and len(times[0]) > 3


@pytest.mark.parametrize(("name", "code", "said"), [("SIGINT", 130, "tfdist: interrupted\n"), slow("SIGTERM", -15, "")])
def test_the_first_signal_ends_the_command(tmp_path, name, code, said):
    """It was recorded for a loop that the command has not, and the command went on to its end."""
    (tmp_path / "pressed.py").write_text(
        "import os, signal\nfrom tfdist import config as c\n"
        f"def source(split):\n    os.kill(os.getpid(), signal.{name})\n"
        "def get_config():\n    data = c.Data(source={'target': 'pressed:source'})\n"
        "    return c.Config(model={'target': 'x:y'}, data=data, train=c.Train(steps=1))\n"
    )
    done = tfdist("prepare", "--config=pressed.py", code=code, cwd=tmp_path, start=forked.run)
    assert done.stdout == "" and done.stderr.endswith(said), done
