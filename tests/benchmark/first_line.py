"""Measures how soon a command says something on a terminal: `python -m tests.benchmark.first_line`.

Prints, for each command, the processor time until its first line, which is about the time on a machine that does
nothing else, the time by the clock, and the line. The command is stopped then. Runs in an empty directory.
"""

import os
import pathlib
import pty
import shlex
import signal
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).parents[2]
COMMANDS = (
    *("train digits", "run my_script.py", "launch --workers=2 -- digits", "evaluate runs/none", "doctor"),
    *("doctor --config=digits", "prepare --config=digits", "scaling digits", "batch_size --config=digits"),
    *("models --names=tfdist.zoo.models:mlp", "trajectories --config=line", "all_reduce --config=digits"),
    *("parallel_mistakes", "course piz_daint ring", "new mine --table=table.csv"),
)
SCRIPT = "import keras\nkeras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]).summary()\n"
TABLE = "size,kind\n" + "".join(f"{number},{'ab'[number % 2]}\n" for number in range(50))


def first_line(command: str, folder: pathlib.Path) -> tuple[float, float, str]:
    """Returns seconds of processor time, seconds by the clock, and the first line on a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    words = [sys.executable, "-m", "tfdist", *shlex.split(command)]
    begin = time.monotonic()
    process = subprocess.Popen(
        words, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    line = os.read(ours, 200)
    seconds = time.monotonic() - begin
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    processor = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    os.close(ours)
    return processor, seconds, line.decode(errors="replace").strip().splitlines()[0]


def main() -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "my_script.py").write_text(SCRIPT)
        (folder / "table.csv").write_text(TABLE)
        for command in COMMANDS:
            processor, seconds, line = first_line(command, folder)
            print(f"{processor:5.2f} s  {seconds:6.2f} s  tfdist {command:42} {line[:70]}", flush=True)


if __name__ == "__main__":
    main()
