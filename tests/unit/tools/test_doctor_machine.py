"""`tfdist doctor` without a config: what it says of this machine, and of others that are described to it."""

import subprocess
import sys

import pytest
from launching import worker_environment

from tfdist.cluster.devices.machine import Machine
from tfdist.tools.doctor import this_machine
from tfdist.tools.doctor.checks import BAD, LOOK, OK

VERSIONS = {"tensorflow": "2.21.0", "keras": "3.15.1"}
GH200 = Machine(architecture="aarch64", gpus={"nvidia": 4}, site="JUPITER (JSC)")
LUMI = Machine(architecture="x86_64", processor_flags=frozenset({"avx", "avx2"}), gpus={"amd": 8}, site="LUMI")


@pytest.mark.slow
def test_the_machine_of_the_tests_has_no_problem(tmp_path):
    command = [sys.executable, "-m", "tfdist", "doctor"]
    done = subprocess.run(command, cwd=tmp_path, env=worker_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "No problems found." in done.stdout, done.stdout + done.stderr
    for words in ("machine ", "software  ok", "GPUs", "none: one worker", str(tmp_path), "tfdist doctor my_config.py"):
        assert words in done.stdout
    done = subprocess.run(
        [*command, "--seconds=x"], cwd=tmp_path, env=worker_environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1 and "--seconds=x" in done.stderr


def test_versions_of_a_sites_old_module_are_bad():
    finding = this_machine.software(LUMI, VERSIONS | {"tensorflow": "2.16.1"})
    assert finding.verdict == BAD and "tfdist needs tensorflow>=2.18,<2.22" in finding.finding
    assert this_machine.software(LUMI, VERSIONS).verdict == OK


def test_gpus_that_tensorflow_does_not_use_are_named():
    (finding,) = this_machine.gpus(GH200, 0, "This host has 4 GPU(s), but ...")
    assert finding.verdict == BAD
    (finding,) = this_machine.gpus(LUMI, 0, "")
    assert finding.verdict == LOOK and "8 of AMD; TensorFlow lists 0" in finding.finding
    assert this_machine.gpus(GH200, 4, "")[0].verdict == OK
    assert "aarch64" in this_machine.processor(GH200).finding and "JUPITER" in this_machine.processor(GH200).finding


def test_the_launcher_and_names_that_do_not_resolve_are_reported():
    torchrun = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    findings, spec = this_machine.launcher(torchrun | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    assert [each.verdict for each in findings] == [OK] and spec.rank == 1
    assert findings[0].finding == "torchrun: worker 1 of 2"
    findings, spec = this_machine.launcher(torchrun | {"RANK": "2"})
    assert findings[0].verdict == BAD and "inconsistent" in findings[0].finding and spec is None
    forgotten = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}
    assert this_machine.launcher(forgotten)[0][0].verdict == LOOK
