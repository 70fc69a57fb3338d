"""The script of docs/consistency.md: weights in one place make the same run as a copy on each device."""

import re
import sys

import forked
import pytest
from launching import REPOSITORY, worker_environment


@pytest.mark.slow
def test_weights_in_one_place_are_those_of_mirrored_ones(tmp_path):
    page = (REPOSITORY / "docs/consistency.md").read_text()
    (script,) = re.findall(r"^```python\n# central_storage\.py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    # The weights must have moved, or equal ones would show nothing.
    script += "print('moved:', max(np.abs(b).max() for b in central[1::2]))\n"
    path = tmp_path / "central_storage.py"
    path.write_text(script)
    done = forked.run(
        [sys.executable, str(path)], env=worker_environment(), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    found = dict(line.split(": ") for line in done.stdout.splitlines())
    assert float(found["largest difference"]) < 1e-6 and float(found["moved"]) > 1e-3
