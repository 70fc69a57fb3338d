"""The benchmark command: its tables, its processes, and its messages."""

import importlib.util
import json
import re
import signal
import subprocess
import sys
import time

import pytest
from launching import REPOSITORY, python, worker_environment
from parameters import slow

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed; only the benchmark's peer needs it"
)


def benchmark(*flags: str, code: int = 0) -> subprocess.CompletedProcess:
    return python("-m", "tests.benchmark", *flags, code=code, start=subprocess.run)


@pytest.mark.slow
def test_steps_and_baselines_are_measured_even_if_the_terminal_is_closed(tmp_path):
    path, output, folders = tmp_path / "numbers.json", tmp_path / "output", tmp_path / "folders"
    folders.mkdir()
    flags = ["--sections=steps,all_reduce", "--workloads=mlp", "--peers=keras", f"--json={path}"]
    flags += ["--workers=1", "--seconds=0.02", "--rounds=1", "--nopin"]
    with output.open("w") as file:
        process = subprocess.Popen(
            # The tests themselves may run under nohup.
            ["env", "--default-signal=HUP", sys.executable, "-m", "tests.benchmark", *flags],
            cwd=REPOSITORY,
            env=worker_environment(TMPDIR=str(folders)),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    deadline = time.monotonic() + 300
    while not re.search("^tfdist float32 .*\n", output.read_text(), re.MULTILINE) and time.monotonic() < deadline:
        assert process.poll() is None, output.read_text()
        time.sleep(0.05)
    process.send_signal(signal.SIGHUP)  # Now that the first table stands there, and the second does not.
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert list(folders.iterdir()) == []
    rows = json.loads(path.read_text())["rows"]
    names = ["floor", "floor, fused, looped", "textbook", "Keras fit", "Keras fit, 50 steps per execution"]
    names.append("tfdist float32")
    assert [row["name"] for row in rows] == names
    for row in rows:
        assert row["milliseconds"] > 0 and row["cpu_milliseconds"] > 0 and row["peak_mb"] > 100
        assert row["name"] in output.read_text()
        assert row["steps"] % (50 if "50 steps" in row["name"] else 1) == 0
        assert row["ratio"] == pytest.approx(row["milliseconds"] / rows[-1]["milliseconds"])


@pytest.mark.slow
@needs_torch
def test_pytorch_is_measured_alone_and_by_ddp(tmp_path):
    path = tmp_path / "numbers.json"
    flags = ["--workers=1,2", "--variants=bfloat16", "--seconds=0.02", "--rounds=1", "--nopin"]
    benchmark("--sections=steps", "--workloads=mlp", "--peers=ddp", *flags, f"--json={path}")
    rows = {row["name"]: row for row in json.loads(path.read_text())["rows"]}
    for name in ("alone", "DDP"):
        assert rows[f"PyTorch {name} bfloat16"]["milliseconds"] > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sections=step"], "--sections: there is no 'step'; there are steps, input, all_reduce"),
        slow(["--sections=all_reduce", "--link=fast", "--nopin"], "tests.benchmark: --link"),
        (["--workers=1,"], "--workers must be numbers from 1 on, as 1,2. Received: '1,'"),
        slow(["--workers=2,5000"], "5000 workers need a CPU core each, and there are"),
    ],
)
def test_unmeasurable_values_are_reported(flags, message):
    assert message in benchmark(*flags, code=1).stderr


@pytest.mark.slow
def test_the_time_of_a_start_is_measured(tmp_path):
    path = tmp_path / "numbers.json"
    benchmark("--sections=start", "--rounds=1", "--nopin", f"--json={path}")
    rows = json.loads(path.read_text())["rows"]
    assert [row["name"] for row in rows] == ["bare script", "tfdist"] and all(row["milliseconds"] > 0 for row in rows)
