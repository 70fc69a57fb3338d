"""The commands of docs/many-runs.md that list and compare runs, run as they stand there."""

import re
import shlex

import pages
import pytest
from launching import REPOSITORY, tfdist

PAGE = REPOSITORY / "docs" / "many-runs.md"


@pytest.mark.slow
def test_the_commands_of_the_page_show_what_it_says(tmp_path):
    section = PAGE.read_text().partition("## List and compare")[2].partition("\n## ")[0]
    shown = {}
    for line in "".join(pages.blocks(section, "bash")).splitlines():
        program, *words = shlex.split(line)
        assert program == "tfdist"
        shown[line] = tfdist(*words, cwd=tmp_path).stdout
    lists = [output.splitlines() for line, output in shown.items() if line.startswith("tfdist runs")]
    assert [len(lines) for lines in lists] == [4, 3] and "runs/peak=0.2 " in lists[1][2]
    (compared,) = (output for line, output in shown.items() if "compare" in line)
    assert "learning_rate.peak  0.05" in re.sub(" +", "  ", compared) and "data.batch_size" not in compared
