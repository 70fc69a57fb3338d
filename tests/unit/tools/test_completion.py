"""Completion of the command `tfdist`: the words, and the script of bash."""

import shlex
import subprocess
import sys

import pytest
from launching import REPOSITORY, worker_environment

from tfdist.tools.start import completion

COMMANDS = {
    "train": "tfdist.main",
    "run": "tfdist.run",
    "scaling": "tfdist.tools.scaling",
    "course": "tfdist.configs.laboratory.course",
}


def test_completion_lists_commands_and_config_files(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    assert completion.words([], COMMANDS) == ["completion", "course", "run", "scaling", "train"]
    assert completion.words(["tr"], COMMANDS) == ["train"]
    assert completion.words(["completion", "z"], COMMANDS) == ["zsh"]
    assert completion.words(["course", "p"], COMMANDS) == ["piz_daint"]
    assert completion.words(["train", "--config=conf"], COMMANDS) == ["--config=configs/"]
    assert completion.words(["train", "configs/digits."], COMMANDS) == ["configs/digits.py"]
    assert completion.words(["train", "--config=nowhere/"], COMMANDS) == []
    assert completion.words(["run", "--"], COMMANDS) == [
        "--logical_devices=",
        "--workdir=",
    ]
    assert completion.words(["run", "tests/scripts/auto"], COMMANDS) == ["tests/scripts/autoencoder.py"]


def test_bash_completes_flags_and_fields_after_an_equals_sign():
    script = f"""
        tfdist() {{ {shlex.quote(sys.executable)} -m tfdist "$@"; }}
        complete() {{ :; }}
        eval "$(tfdist completion bash)"
        for line in "tfdist sc" "tfdist scaling --ep" "tfdist train --config=configs/digits." \\
            "tfdist train configs/digits.py --config.train.ep"; do
            COMP_LINE="$line"; COMP_POINT=${{#line}}; _tfdist; printf '<%s>\n' "${{COMPREPLY[@]}}"
        done
    """
    done = subprocess.run(
        ["bash", "-c", script], cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    assert done.stdout.split("\n") == [
        "<scaling >",
        "<--epochs=>",
        "<configs/digits.py >",
        "<--config.train.epochs=>",
        "",
    ]


def test_completion_refuses_an_unknown_shell():
    with pytest.raises(SystemExit, match="give one of bash, zsh"):
        completion.main(["fish"], COMMANDS)
