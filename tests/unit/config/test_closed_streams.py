"""Commands whose standard streams are closed, by real processes: nothing is printed, and all is as otherwise."""

import json
import subprocess
import sys

import pytest
from launching import REPOSITORY, worker_environment

SCRIPT = """
import keras, numpy, tfdist
cluster = tfdist.connect()
x = numpy.arange(64.0, dtype="float32").reshape(16, 4) / 64
with cluster.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
tfdist.fit(cluster, model, x, x[:, :1], epochs=2, batch_size=8, verbose=1, workdir="run")
"""


PRINTS = """
import subprocess, sys
from tfdist.config import closed_streams
closed_streams.reopen()
file = open("opened", "w")
file.write(str(file.fileno() > 2))
print("out", flush=True), print("err", file=sys.stderr, flush=True)
subprocess.run([sys.executable, "-c", "import sys; print(2); print(3, file=sys.stderr)"], check=True)
"""


def with_closed(streams, *words, cwd):
    """Runs Python with the streams closed, such as "1 2"; returns what it printed to the others."""
    closed = " ".join(f"{number}>&-" for number in streams.split())
    env = worker_environment(PYTHONPATH=str(REPOSITORY))
    line = ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, *map(str, words)]
    done = subprocess.run(line, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done
    return done.stdout + done.stderr


@pytest.mark.parametrize("streams", ["2", "0 1 2"])
def test_no_file_gets_the_number_of_a_closed_stream(tmp_path, streams):
    printed = with_closed(streams, "-c", PRINTS, cwd=tmp_path)
    assert (tmp_path / "opened").read_text() == "True"
    assert printed.split() == [*(["out", "2"] * ("1" not in streams)), *(["err", "3"] * ("2" not in streams))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["-m", "tfdist.main", "--config=digits", "--epochs=1", "--workdir=run"], ["script.py"]], ids=str
)
def test_a_run_without_standard_output_and_error(tmp_path, words):
    (tmp_path / "script.py").write_text(SCRIPT)
    assert with_closed("1 2", *words, cwd=tmp_path) == ""
    assert (tmp_path / "run" / "finished.json").is_file()
    kinds = {json.loads(line)["kind"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()}
    assert {"train", "state"} <= kinds
