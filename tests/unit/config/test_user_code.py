"""Which code is the user's: that of an error's place, and that whose hash a run records."""

import os
import subprocess

import keras
import pytest
from launching import REPOSITORY, python

from tfdist.config import user_code

LAB = """
def objective(batch):
    return batch["images"]
"""


SCRIPT = """
import importlib
import os

from tfdist.config import user_code
import lab_of_user_code

try:
    lab_of_user_code.objective({})
except KeyError as error:
    print(user_code.place(error))
print(user_code.is_users(lab_of_user_code.__file__), user_code.is_users(__file__))
name = "__autograph_generated_file1a2b.py"
open(os.path.join(os.path.dirname(__file__), name), "w").close()
importlib.import_module(name.removesuffix(".py"))  # As AutoGraph does for the function that it converts.
found = user_code.hashes()
print(*sorted(found))
open(__file__, "a").write("# Edited while the script runs.")
print(found == user_code.hashes())
"""


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        ("site", ["scripts/use.py, line 9, `lab_of_user_code.objective({})`", "False True", "tfdist use.py", "True"]),
        (
            "scripts",
            [
                'scripts/lab_of_user_code.py, line 3, `return batch["images"]`',
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
    done = python(tmp_path / "scripts" / "use.py", start=subprocess.run, cwd=tmp_path, PYTHONPATH=path)
    assert done.stdout.splitlines() == expected


def test_a_rate_that_cannot_be_set_is_explained_for_a_config():
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9))
    with pytest.raises(TypeError) as raised:
        optimizer.learning_rate = 0.01
    assert "schedules:settable" in user_code.explain(raised.value)
