"""The shipped configs and networks are found from a clone and from the wheel, by path and by dotted path."""

import os
import pathlib
import shutil
import subprocess
import sys

from tfdist import configs

ROOT = pathlib.Path(__file__).parents[3]
# Loads a config by its path and a network by its dotted path, in a folder without a clone.
USER = """
import importlib.util
from tfdist import configs
from tfdist.config import load
file = configs.find("configs/cifar_fast.py")
config = load.load(file)
target = config.model["target"]
print(file, target, importlib.util.find_spec(target.partition(":")[0]) is not None)
"""


def test_a_users_file_comes_before_a_shipped_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = str(configs.FOLDER / "digits.py")
    assert configs.find("configs/digits.py") == configs.find("digits.py") == shipped
    assert configs.find("configs/digits.py:16") == f"{shipped}:16"
    assert configs.find("configs/none.py") == "configs/none.py"
    (tmp_path / "digits.py").touch()
    assert configs.find("digits.py") == "digits.py"


def test_the_wheel_has_the_configs_in_the_package(tmp_path):
    assert 'configs = "tfdist/shipped_configs"' in (ROOT / "pyproject.toml").read_text()
    for folder, to in (("tfdist", "tfdist"), ("configs", "tfdist/shipped_configs")):
        shutil.copytree(ROOT / folder, tmp_path / "site" / to, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "empty").mkdir()
    env = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    said = subprocess.check_output([sys.executable, "-c", USER], cwd=tmp_path / "empty", env=env, text=True)
    file = f"{tmp_path}/site/tfdist/shipped_configs/cifar_fast.py"
    assert said.split() == [file, "tfdist.configs.networks.airbench:network", "True"]
