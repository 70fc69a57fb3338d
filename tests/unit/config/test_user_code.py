"""Errors in users' functions: the place, the message and the batch, in one paragraph."""

import importlib
import os
import subprocess
import sys

import pytest
from processes import REPOSITORY

from tfdist.config import user_code

LAB = """
import json

def objective(batch):
    return batch["images"]

def read(text):
    return json.loads(text)
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    (tmp_path / "lab_of_user_code.py").write_text(LAB)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    yield importlib.import_module("lab_of_user_code")
    sys.modules.pop("lab_of_user_code", None)


def test_the_place_is_in_the_users_file_and_not_in_a_library(lab):
    with pytest.raises(ValueError, match="Expecting") as raised:
        lab.read("{")
    assert user_code.explain(raised.value).startswith("lab_of_user_code.py, line 8, `return json.loads(text)`: JSON")
    stack = raised.value.__traceback__.tb_next.tb_next  # Without this file and the user's.
    assert user_code.explain(raised.value.with_traceback(stack)) == ""


SCRIPT = """
from tfdist.config import user_code
import lab_of_user_code

try:
    lab_of_user_code.objective({})
except KeyError as error:
    print(user_code.place(error))
print(user_code.is_users(lab_of_user_code.__file__), user_code.is_users(__file__))
found = user_code.hashes()
print(*sorted(found))
open(__file__, "a").write("# Edited while the script runs.")
print(found == user_code.hashes())
"""


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        ("site", ["scripts/use.py, line 6, `lab_of_user_code.objective({})`", "False True", "tfdist use.py", "True"]),
        (
            "scripts",
            [
                'scripts/lab_of_user_code.py, line 5, `return batch["images"]`',
                "True True",
                "lab_of_user_code.py tfdist use.py",
                "True",
            ],
        ),
    ],
)
def test_packages_in_a_folder_of_pythonpath_are_no_code_of_the_user(tmp_path, packages, expected):
    """As `pip install --target=site` leaves them; beside a script a module may be the user's, and counts as it.

    They are not hashed either, though they lie below the working directory.
    """
    for folder in {"scripts", packages}:
        (tmp_path / folder).mkdir()
    (tmp_path / "scripts" / "use.py").write_text(SCRIPT)
    (tmp_path / packages / "lab_of_user_code.py").write_text(LAB)
    (tmp_path / packages / "lab_of_user_code-1.0.dist-info").mkdir()
    path = os.pathsep.join([str(REPOSITORY), str(tmp_path / packages)])
    command, env = [sys.executable, tmp_path / "scripts" / "use.py"], os.environ | {"PYTHONPATH": path}
    assert subprocess.check_output(command, env=env, cwd=tmp_path, text=True).splitlines() == expected
