"""The choice of oneDNN: by a table of processors, kept by a run, equal on all workers."""

import json
import os
import subprocess
import sys

import pytest
from launching import REPOSITORY, run_all, train_command, worker_environment
from processes import run
from topologies import environments

from tfdist.cluster.devices import onednn

CPUINFO = (
    "processor\t: 0\nvendor_id\t: {}\ncpu family\t: {}\nmodel name\t: A name\nflags\t\t: fpu {}\n\nprocessor\t: 1\n"
)
ZEN3 = CPUINFO.format("AuthenticAMD", 25, "avx avx2 fma")
ZEN4 = CPUINFO.format("AuthenticAMD", 25, "avx avx2 fma avx512_vnni")
HASWELL = CPUINFO.format("GenuineIntel", 6, "avx avx2 fma")
OLD = CPUINFO.format("GenuineIntel", 6, "avx")
# Chooses in a process without TensorFlow, and prints what TensorFlow would find.
CHOOSE = """
import json, os, pathlib, sys
from tfdist.cluster.devices import onednn
read = onednn.read_processor
onednn.read_processor = lambda: read(sys.argv[1])
onednn.platform.machine = lambda: "x86_64"
workdir = pathlib.Path(sys.argv[2]) if sys.argv[2] else None
choice = onednn.choose(os.environ, workdir)
assert onednn.choose(os.environ) == onednn.current(os.environ) == choice
with onednn.apply_choice(os.environ):
    read_by_tensorflow = os.environ.get(onednn.VARIABLE)
assert os.environ.get(onednn.VARIABLE) == os.environ.get("BEFORE")
print(json.dumps([choice.enabled, read_by_tensorflow, choice.reason]))
"""


def choose(cpuinfo, workdir="", **variables):
    env = {name: value for name, value in worker_environment().items() if name != onednn.VARIABLE}
    env |= variables
    env |= {"BEFORE": env[onednn.VARIABLE]} if onednn.VARIABLE in env else {}
    command = [sys.executable, "-c", CHOOSE, cpuinfo, str(workdir)]
    return json.loads(subprocess.run(command, env=env, capture_output=True, check=True, text=True).stdout)


def test_the_default_depends_on_the_processor():
    assert choose(ZEN3)[:2] == [True, "1"]
    assert choose(ZEN4)[:2] == [True, None]
    assert choose(OLD)[:2] == choose("")[:2] == [False, None]
    assert choose(HASWELL) == [False, None, "TensorFlow's default on this processor, which was not measured"]


def test_a_value_that_tensorflow_ignores_leaves_its_default():
    said = "TensorFlow's default, as it ignores TF_ENABLE_ONEDNN_OPTS='yes'"
    assert choose(ZEN4, TF_ENABLE_ONEDNN_OPTS="yes") == [True, "yes", said]
    assert choose(ZEN3, TF_ENABLE_ONEDNN_OPTS="")[:2] == [False, ""]
    assert choose(ZEN3, TF_ENABLE_ONEDNN_OPTS="True")[0]


def test_an_arm_processor_with_onednn_by_default_is_known():
    text = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: {}\n"
    assert onednn.read_processor(text.format("0xd40")).on_by_default
    assert not onednn.read_processor(text.format("0xd4f")).on_by_default


def test_the_environment_variable_of_the_user_comes_first():
    assert choose(ZEN3, TF_ENABLE_ONEDNN_OPTS="0") == [False, "0", "TF_ENABLE_ONEDNN_OPTS=0"]
    assert choose(HASWELL, TF_ENABLE_ONEDNN_OPTS="1")[:2] == [True, "1"]


@pytest.mark.parametrize("cpuinfo", [ZEN3, ZEN4])
def test_a_run_keeps_its_choice(tmp_path, cpuinfo):
    path = tmp_path / onednn.ENVIRONMENT
    path.write_text(json.dumps({onednn.ENTRY: {"enabled": False, "reason": "TF_ENABLE_ONEDNN_OPTS=0"}}))
    expected = "0" if cpuinfo == ZEN4 else None
    assert choose(cpuinfo, tmp_path) == [False, expected, "as at the last start of the run"]
    reason = choose(cpuinfo, tmp_path, TF_ENABLE_ONEDNN_OPTS="1")[2]
    assert reason == "TF_ENABLE_ONEDNN_OPTS=1, unlike before: results differ in last bits"
    path.write_text("{}")  # A run from before there was a choice: as TensorFlow decided.
    assert choose(cpuinfo, tmp_path)[:2] == [cpuinfo == ZEN4, None]


@pytest.mark.slow
def test_workers_of_a_run_record_it_and_must_agree(tmp_path):
    command = train_command(tmp_path / "run")
    both = environments(2)
    run_all([command] * 2, [env | {onednn.VARIABLE: "1"} for env in both])
    recorded = json.loads((tmp_path / "run" / onednn.ENVIRONMENT).read_text())[onednn.ENTRY]
    assert recorded == {"enabled": True, "reason": "TF_ENABLE_ONEDNN_OPTS=1"}
    both = environments(2)
    codes, outputs = run(
        [train_command(tmp_path / "other")] * 2, [env | {onednn.VARIABLE: str(i)} for i, env in enumerate(both)]
    )
    assert codes == [1, 1] and "oneDNN, of TF_ENABLE_ONEDNN_OPTS: 'off' on rank 0" in outputs[0], outputs


@pytest.mark.slow
def test_a_config_that_imports_tensorflow_keeps_the_runs_choice_too(tmp_path):
    (tmp_path / "mine.py").write_text(f"import keras\n{(REPOSITORY / 'configs/line.py').read_text()}")
    command = [sys.executable, "-m", "tfdist.main", f"--config={tmp_path / 'mine.py'}", f"--workdir={tmp_path / 'run'}"]
    environment = {name: value for name, value in worker_environment().items() if name != onednn.VARIABLE}
    for steps, given in (("1", {onednn.VARIABLE: "0"}), ("2", {})):
        words = [*command, f"--config.train.steps={steps}", "--allow_config_changes"]
        subprocess.run(words, env=environment | given, cwd=REPOSITORY, check=True)
        (tmp_path / "run" / "finished.json").unlink()
    recorded = json.loads((tmp_path / "run" / onednn.ENVIRONMENT).read_text())[onednn.ENTRY]
    assert recorded == {"enabled": False, "reason": "as at the last start of the run"}


def test_a_line_says_that_tensorflow_was_imported_before(monkeypatch):
    monkeypatch.setattr(onednn, "_chosen", None)
    monkeypatch.delenv(onednn.VARIABLE, raising=False)
    expected = [(onednn.read_processor(text), told) for text, told in ((ZEN3, True), (ZEN4, False), (OLD, False))]
    for found, told in expected:
        monkeypatch.setattr(onednn, "read_processor", lambda found=found: found)
        monkeypatch.setattr(onednn.platform, "machine", lambda: "x86_64")
        assert ("import tfdist first" in onednn.advice(onednn.current(os.environ))) == told
    monkeypatch.setenv(onednn.VARIABLE, "0")
    assert onednn.advice(onednn.current(os.environ)) == ""
    assert onednn.describe(onednn.current(os.environ)).startswith("oneDNN off: TF_ENABLE_ONEDNN_OPTS=0;")
