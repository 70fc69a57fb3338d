"""The commands of docs/many-runs.md that list and compare runs, run as they stand there."""

import re
import shlex
import subprocess
import sys

import forked
import pytest
from launching import REPOSITORY, worker_environment

PAGE = REPOSITORY / "docs" / "many-runs.md"


@pytest.mark.slow
def test_the_commands_of_the_page_show_what_it_says(tmp_path):
    section = PAGE.read_text().partition("## List and compare")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```bash\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    shown = {}
    for line in "".join(blocks).splitlines():
        words = shlex.split(line)
        command = [sys.executable, "-m", "tfdist", *words[1:]]
        start = forked.run if words[1] == "train" else subprocess.run
        done = start(command, cwd=tmp_path, env=worker_environment(), capture_output=True, text=True, timeout=300)
        assert words[0] == "tfdist" and done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        shown[line] = done.stdout
    lists = [output.splitlines() for line, output in shown.items() if line.startswith("tfdist runs")]
    assert [len(lines) for lines in lists] == [4, 3] and "runs/peak=0.2 " in lists[1][2]
    (compared,) = (output for line, output in shown.items() if "compare" in line)
    assert "learning_rate.peak  0.05" in re.sub(" +", "  ", compared) and "data.batch_size" not in compared
