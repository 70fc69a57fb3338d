"""Errors in users' functions: the place, the message and the batch, in one paragraph."""

import importlib
import json
import os
import subprocess
import sys

import numpy as np
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


def error_of(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return error
    raise AssertionError("no error")


def test_a_missing_key_is_explained_with_the_keys_of_the_batch(lab):
    batch = {"image": np.zeros((2, 8, 8, 1), np.float32), "label": np.zeros(2, np.int64)}
    assert user_code.explain(error_of(lab.objective, batch), "config.objective", batch) == (
        "config.objective failed at lab_of_user_code.py, line 5, `return batch[\"images\"]`: KeyError: 'images'. "
        "Did you mean 'image'? The batch has image float32 (2, 8, 8, 1), label int64 (2,)."
    )


def test_the_place_is_in_the_users_file_and_not_in_a_library(lab):
    text = user_code.explain(error_of(lab.read, "{"))
    assert text.startswith(
        "lab_of_user_code.py, line 8, `return json.loads(text)`: JSONDecodeError: Expecting property"
    )


def test_an_error_without_code_of_the_user_is_not_explained():
    try:
        json.loads("{")
    except ValueError as error:
        stack = error.__traceback__.tb_next  # Without this file.
        assert user_code.explain(error.with_traceback(stack)) == ""


def test_colours_are_removed():
    assert user_code.message(ValueError("\x1b[1mred\x1b[0m and\n  blue")) == "red and blue"


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
    done = subprocess.run(
        [sys.executable, tmp_path / "scripts" / "use.py"],
        env=os.environ | {"PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.splitlines() == expected
