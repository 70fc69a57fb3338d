"""The choice of oneDNN: by a table of processors, kept by a run, equal on all workers."""

import json
import subprocess
import sys

import pytest
from launching import python, worker_environment

from tfdist.cluster.devices import onednn

CPUINFO = (
    "processor\t: 0\nvendor_id\t: {}\ncpu family\t: {}\nmodel name\t: A name\nflags\t\t: fpu {}\n\nprocessor\t: 1\n"
)
ZEN3 = CPUINFO.format("AuthenticAMD", 25, "avx avx2 fma")
HASWELL = CPUINFO.format("GenuineIntel", 6, "avx avx2 fma")
OLD = CPUINFO.format("GenuineIntel", 6, "avx")
# Chooses in a process without TensorFlow, and prints what TensorFlow would find.
CHOOSE = """
import json, os, pathlib, sys
from tfdist.cluster.devices import onednn
read = onednn.read_processor
onednn.read_processor = lambda: read(pathlib.Path(sys.argv[1]))
workdir = pathlib.Path(sys.argv[2]) if sys.argv[2] else None
onednn.choose(os.environ, workdir)
with onednn.apply_choice(os.environ):
    read_by_tensorflow = os.environ.get(onednn.VARIABLE)
assert os.environ.get(onednn.VARIABLE) == os.environ.get("BEFORE")
print(json.dumps(read_by_tensorflow))
"""


def test_the_variable_the_saved_run_and_the_table_decide_in_this_order(tmp_path):
    def choose(cpuinfo, workdir="", **variables):
        """The variable at TensorFlow's import, with these variables of the environment."""
        (tmp_path / "cpuinfo").write_text(cpuinfo)
        env = {name: value for name, value in worker_environment().items() if name != onednn.VARIABLE} | variables
        env |= {"BEFORE": env[onednn.VARIABLE]} if onednn.VARIABLE in env else {}
        command = [sys.executable, "-c", CHOOSE, str(tmp_path / "cpuinfo"), str(workdir)]
        return json.loads(subprocess.check_output(command, env=env))

    assert choose(ZEN3) == "1" and choose(OLD) is choose(HASWELL) is None
    assert choose(ZEN3, TF_ENABLE_ONEDNN_OPTS="0") == "0"
    (tmp_path / onednn.ENVIRONMENT).write_text(json.dumps({onednn.ENTRY: {"enabled": False}}))
    assert choose(ZEN3, tmp_path) == "0"
    assert choose(ZEN3, tmp_path, TF_ENABLE_ONEDNN_OPTS="1") == "1"


@pytest.mark.slow
@pytest.mark.parametrize(("value", "enabled"), [("0", "False"), ("1", "True")])
def test_tensorflow_says_what_it_does(value, enabled):
    code = "import tfdist, os\nimport tensorflow\nfrom tfdist.cluster.devices import onednn\n"
    code += "print(onednn.enabled())"
    done = python("-c", code, start=subprocess.run, **{onednn.VARIABLE: value})
    assert done.stdout.split() == [enabled]
