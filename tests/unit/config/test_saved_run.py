"""The workdir of a run in the place of its config, and `--epochs`."""

import dataclasses
import json
import pathlib

import pytest

from tfdist import config as c
from tfdist.config import diff, saved_run, tool_flags
from tfdist.report import run_info


def write_run(workdir, config, command=(), **environment):
    workdir.mkdir(parents=True)
    run_info.write_config(workdir, diff.to_json(config))
    (workdir / "environment.json").write_text(json.dumps({"command": list(command), **environment}))
    return workdir


def test_a_saved_config_is_read_as_it_was(tmp_path):
    config = c.Config(model={"target": "a.b:net", "width": 3}, callbacks=[{"target": "x:Y"}])
    config.train.epochs, config.data.evaluation_split, config.report.profile = 3.0, None, [1, 2]
    workdir = write_run(tmp_path / "x", config)
    assert dataclasses.asdict(saved_run.load(workdir / "config.json")) == dataclasses.asdict(config)


def test_the_workdir_of_a_script_says_how_to_resume(tmp_path):
    fits = [write_run(tmp_path / "s" / f"fit{number}", {"model": {"class": "M"}}, ["tfdist", "run", "my script.py"])
            for number in (2, 10, 1)]  # fmt: skip
    (tmp_path / "s" / "fit11").mkdir()
    assert saved_run.newest(tmp_path / "s") == fits[1] and saved_run.newest(fits[0]) == fits[0]
    with pytest.raises(ValueError, match=r"has no run: it has no config\.json"):
        saved_run.newest(tmp_path)
    with pytest.raises(ValueError, match=r"the workdir of a script.* tfdist run 'my script.py'"):
        saved_run.load(fits[0] / "config.json")
    (fits[0] / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        saved_run.load(fits[0] / "config.json")


def test_modules_are_found_where_the_run_found_them(tmp_path):
    (tmp_path / "labs").mkdir()
    started = {"directory": str(tmp_path), "config_file": str(tmp_path / "labs" / "mine.py:large")}
    workdir = write_run(tmp_path / "x", c.Config(model={"target": "a:b"}), **started)
    assert saved_run.import_folders(str(workdir / "config.json")) == [str(tmp_path), str(tmp_path / "labs")]
    assert saved_run.import_folders("labs/mine.py")[0].endswith("labs")


def read(*words, trains=True):
    """Reads a command line of tfdist.main, or of a tool."""
    parser = tool_flags.Parser("main", "")
    if trains:
        parser.add_run_flags()
    else:
        parser.add_config()
        parser.add_workdir("runs/NAME-study")
    return parser.read(words)


def test_a_workdir_is_a_config_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = write_run(pathlib.Path("runs/x"), c.Config(model={"target": "a:b"}))
    for given in (["--epochs", "20", "--config=runs/x"], ["runs/x", "--epochs=20"]):
        args = read(*given)
        assert args.workdir == run and args.allow_config_changes and args.config_file == "runs/x/config.json"
        assert args.config.train.epochs == 20 and args.config.train.steps is None
    args = read("--workdir=y", "runs/x")  # Another run, with the same config.
    assert args.workdir == pathlib.Path("y") and not args.allow_config_changes
    assert read("runs/x", trains=False).workdir == pathlib.Path("runs/x-study")
    for given in (["--config=runs"], ["runs"]):
        with pytest.raises(SystemExit, match="runs has no run: it has no"):
            read(*given)
