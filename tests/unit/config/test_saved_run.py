"""The workdir of a run in the place of its config, and `--epochs`."""

import dataclasses
import json

import pytest
from absl import flags as absl_flags

from tfdist import config as c
from tfdist.config import diff, saved_run
from tfdist.config.command_line import words
from tfdist.report import run_info


def write_run(workdir, config, command=(), directory=""):
    workdir.mkdir(parents=True)
    run_info.write_config(workdir, diff.to_json(config))
    (workdir / "environment.json").write_text(json.dumps({"command": list(command), "directory": str(directory)}))
    return workdir


def test_a_saved_config_is_read_as_it_was(tmp_path):
    config = c.Config(model={"target": "a.b:net", "width": 3}, callbacks=[{"target": "x:Y"}])
    config.train.epochs, config.data.evaluation_split, config.report.profile = 3.0, None, [1, 2]
    workdir = write_run(tmp_path / "x", config)
    assert dataclasses.asdict(saved_run.load(workdir / "config.json")) == dataclasses.asdict(config)


def test_the_workdir_of_a_script_says_how_to_resume(tmp_path):
    fits = [write_run(tmp_path / "s" / f"fit{number}", {"model": {"class": "M"}}, ["tfdist", "run", "my script.py"])
            for number in (2, 10, 1)]  # fmt: skip
    assert saved_run.workdirs(tmp_path / "s") == [fits[2], fits[0], fits[1]]
    assert saved_run.workdirs(fits[0]) == [fits[0]] and saved_run.workdirs(tmp_path) == []
    with pytest.raises(ValueError, match=r"the workdir of a script.* tfdist run 'my script.py'"):
        saved_run.load(fits[0] / "config.json")
    (fits[0] / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        saved_run.load(fits[0] / "config.json")


def test_modules_are_found_where_the_run_found_them(tmp_path):
    (tmp_path / "labs").mkdir()
    workdir = write_run(
        tmp_path / "x", c.Config(model={"target": "a:b"}), ["python", "train", "labs/mine.py"], tmp_path
    )
    assert saved_run.import_folders(str(workdir / "config.json")) == [str(tmp_path), str(tmp_path / "labs")]
    assert saved_run.import_folders("labs/mine.py")[0].endswith("labs")


def test_a_workdir_is_a_config_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(absl_flags, "FLAGS", absl_flags.FlagValues())
    write_run(tmp_path / "runs" / "x", c.Config(model={"target": "a:b"}))
    assert words.complete(["runs/x", "--epochs=20"]) == ["runs/x", "--epochs=20"]  # A command without a config.
    absl_flags.DEFINE_string("config", None, "", flag_values=absl_flags.FLAGS)
    assert words.complete(["runs/x"]) == ["--config=runs/x/config.json"]
    absl_flags.DEFINE_bool("allow_config_changes", False, "", flag_values=absl_flags.FLAGS)
    absl_flags.DEFINE_string("workdir", None, "", flag_values=absl_flags.FLAGS)
    assert words.complete(["runs/x", "--epochs=20"]) == [
        *("--config=runs/x/config.json", "--workdir=runs/x", "--allow_config_changes"),
        *("--config.train.epochs=20", "--config.train.steps=none"),
    ]
    for given in (["--epochs", "20", "--config=runs/x"], ["--config", "runs/x", "--epochs", "20"]):
        assert sorted(words.complete(given)) == sorted(words.complete(["runs/x", "--epochs=20"]))
    with pytest.raises(SystemExit, match="runs is a folder without a run: it has no"):
        words.complete(["--config=runs"])
    for given in (["--workdir=y", "runs/x"], ["runs/x", "--workdir=y"]):  # Another run, with the same config.
        assert sorted(words.complete(given)) == ["--config=runs/x/config.json", "--workdir=y"]
    assert words.complete(["--workdir", "runs/x"]) == ["--workdir", "runs/x"]
    with pytest.raises(SystemExit, match="runs is a folder without a run"):
        words.complete(["runs"])
