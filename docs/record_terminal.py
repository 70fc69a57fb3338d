"""Draws docs/terminal.svg: what a terminal shows of two real trainings, alone and on two workers.

usage: python docs/record_terminal.py

Runs the commands in an empty directory, a minute on two cores. Needs rich (the extra `docs`).
"""

import io
import os
import pathlib
import subprocess
import sys
import tempfile

from rich.console import Console
from rich.terminal_theme import MONOKAI

ROOT = pathlib.Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "terminal.svg"
COMMANDS = (
    "tfdist train digits --epochs=4 2>/dev/null",
    "tfdist launch --workers=2 -- digits --epochs=4 --workdir=runs/two 2>/dev/null",
)
WIDTH = 112


def output(command: str, directory: str) -> str:
    """Runs a command of tfdist in a directory; returns what it prints, without the log of TensorFlow's import.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    words = [sys.executable, "-m", *command.removesuffix(" 2>/dev/null").split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(WIDTH)}
    done = subprocess.run(words, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    done.check_returncode()
    return done.stdout.decode().replace(str(ROOT) + "/", "")


def main() -> None:
    """Runs the commands and writes the picture."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False, force_terminal=True)
    with tempfile.TemporaryDirectory() as directory:
        for command in COMMANDS:
            console.print(f"[bold green]$[/] [bold]{command}[/]")
            console.print(output(command, directory), markup=False, soft_wrap=False)
    svg = console.export_svg(title="tfdist", theme=MONOKAI, unique_id="tfdist")
    PICTURE.write_text(svg, encoding="utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()
