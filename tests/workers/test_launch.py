"""The supervisor of one machine, on real processes: workers of tfdist.main, and small programs in their place."""

import concurrent.futures
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import topologies
from launching import REPOSITORY, on_a_terminal, python, worker_environment
from parameters import slow
from processes import children, command_line, running, started, tasks, until

from tfdist.checkpoint import directory
from tfdist.cluster.control import listener
from tfdist.cluster.devices import host_gpus
from tfdist.launch import __main__ as launch
from tfdist.launch import local_workers
from tfdist.launch import processes as processes_lib

pytestmark = pytest.mark.usefixtures("graph_optimizers")
CONFIG, STEPS = "tests/configs/interrupted.py", 56
SHORT, QUICKLY = f"--config.train.steps={STEPS}", "--config.objective.seconds=0.0"
# Runs a small Python program as the workers.
SUPERVISE = """
import sys
from tfdist.launch import __main__ as launch
from tfdist.launch import processes
workers, restarts, launch.GRACE_SECONDS = (float(word) for word in sys.argv[2:5])
with processes.open_group() as group:
    command = [sys.executable, "-c", sys.argv[1]]
    sys.exit(launch.supervise(group, command, [()] * int(workers), restarts))
"""
# What those programs begin with.
RANK = """
import json, os, pathlib, signal, sys, time
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
def die(): os.kill(os.getpid(), signal.SIGKILL)
"""


def heed_hangup():
    """Lets a launcher be ended by SIGHUP, which `nohup pytest` has it ignore."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextlib.contextmanager
def launched(command, **variables):
    """Starts a launcher, with its output in one pipe; ends it, and with it its workers."""
    options = {"popen": subprocess.Popen, "text": True, "preexec_fn": heed_hangup}
    with started([command], [worker_environment(**variables)], **options) as (process,):
        yield process


def launching(workdir, *options, own=("--workers=2",)):
    line = topologies.command(workdir, SHORT, *options, config=CONFIG)
    return [sys.executable, "-m", "tfdist.launch", *own, "--", *line[3:]]


def supervising(program, workers=2, restarts=3, grace=10):
    return [sys.executable, "-c", SUPERVISE, RANK + program, f"{workers}", f"{restarts}", f"{grace}"]


def finish(process, timeout=240):
    """Returns (exit code, output) of a launcher, which must have left no worker behind."""
    output = process.communicate(timeout=timeout)[0]
    assert children(process.pid) == []
    return process.returncode, output


def ready(process, workers=2):
    """The ids of the launcher's workers in the order of their ranks, once `workers` of them run."""

    def found():
        assert process.poll() is None, process.communicate()[0]
        ids = tasks(process.pid)
        started = len(ids) == workers and all("tfdist.main" in command_line(pid) for pid in ids.values())
        return [pid for _, pid in sorted(ids.items())] if started else None

    return until(found)


def saved(process, workdir, before=frozenset()):
    """Waits for a checkpoint that is not in `before`."""

    def found():
        assert process.poll() is None, process.communicate()[0]
        return not before.issuperset(directory.write_times(workdir / "checkpoints"))

    return until(found, 240)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What a run arrives at that TF_CONFIG has started and nothing has disturbed."""
    workdir = tmp_path_factory.mktemp("undisturbed")
    topologies.train(workdir, SHORT, QUICKLY, workers=2, config=CONFIG)
    return topologies.arrays(workdir, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("stops", [0, 1])
def test_launcher_saves_at_sigterm_and_restarts_killed_workers_to_equal_results(undisturbed, tmp_path, stops):
    command = launching(tmp_path, "--config.objective.seconds=0.05")
    stopped = frozenset()
    for _ in range(stops):
        with launched(command) as process:
            saved(process, tmp_path, stopped)
            process.terminate()
            code, output = finish(process)
        assert code == 75 and "and saved" in output, output
        stopped = directory.write_times(tmp_path / "checkpoints")
    with launched(command) as process:
        rank = random.randrange(2)
        victim = ready(process)[rank]
        saved(process, tmp_path, stopped)
        os.kill(victim, signal.SIGKILL)
        code, output = finish(process)
    assert code == 0, output
    said = f"worker {rank} was killed by SIGKILL. Restart 1 of 3, from the newest checkpoint."
    assert f"tfdist.launch: {said}" in output
    assert output.count("[0] resumed from") == 1 + stops and f"[0] finished after step {STEPS}" in output
    assert all(re.match(r"\[[01]\] |tfdist\.launch: ", line) for line in output.splitlines()), output
    topologies.assert_same_bits(undisturbed, topologies.arrays(tmp_path, STEPS))


def test_workers_end_when_the_launcher_is_killed(tmp_path):
    with launched(launching(tmp_path)) as process:
        ready(process)
        time.sleep(random.uniform(0.0, 3.0))
        # A process that a worker starts has the worker's command line until it executes its own program.
        assert len(running(str(tmp_path))) >= 3
        process.kill()
        process.wait()
        until(lambda: not running(str(tmp_path)), 5)


@pytest.mark.parametrize("times", [2, slow(5)])
def test_workers_end_when_the_launcher_is_killed_while_it_starts_them(tmp_path, times):
    # The workers have the path of this test in their command line.
    program = f"mark = {str(tmp_path)!r}; time.sleep(60)"
    for _ in range(times):
        with launched(supervising(program, workers=8)) as process:
            until(lambda launcher=process.pid: children(launcher))
            time.sleep(random.uniform(0.0, 0.02))
            process.kill()
            process.wait()
            until(lambda: not running(str(tmp_path)), 5)


# Name -> program of the workers, flags of the launcher, its exit code and a pattern of its output.
EXITS = {
    "finished": ("sys.exit(0)", {}, 0, r"\A\Z"),
    "stopped": ("sys.exit(75)", {}, 75, r"\A\Z"),
    # The worker that notices may be faster than the one that dies.
    "lost": (
        "time.sleep(0.4 * rank)\nif rank: die()\nsys.exit(76)",
        {"restarts": 2},
        76,
        r"gave up after 2 restart\(s\)\. First cause: worker 1 was killed by SIGKILL\.$",
    ),
    "killed then lost": (
        # Killed in the first start, wrong in the last one: the first cause counts.
        "marks = pathlib.Path(os.environ['MARKS'])\n"
        "if rank: time.sleep(60)\n"
        "n = len(list(marks.iterdir()))\n(marks / str(n)).touch()\n"
        "if n == 0: die()\nsys.exit(76)",
        {"restarts": 1},
        76,
        r"First cause: worker 0 was killed by SIGKILL\. Last cause: worker 0 lost another worker",
    ),
    "mistake": ("if rank == 0: time.sleep(60)\nsys.exit(1)", {}, 1, r"worker 1 .* exit code 1\. Not restarted: "),
    "unequal replicas": ("if rank: time.sleep(60)\nsys.exit(77)", {}, 77, r"worker 0 .* exit code 77\. Not restarted"),
    # One that hangs is named.
    "hung": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(0.3 + 60 * rank)\nsys.exit(76)",
        {"restarts": 0, "grace": 0.5},
        76,
        r"worker 0 lost another worker \(exit code 76\); worker 1 did not answer SIGTERM and was killed",
    ),
}
# Name -> signals to the launcher, what the workers begin with, the launcher's exit code and a pattern of its output.
SIGNALS = {
    "ctrl-c": ([signal.SIGINT], "def stop(*_): sys.exit(75)", 75, ""),
    "usr1": ([signal.SIGUSR1], "def stop(*_): sys.exit(75)", 75, ""),
    "hangup": ([signal.SIGHUP], "def stop(*_): sys.exit(75)", 75, ""),
    "killed while saving": (
        *([signal.SIGTERM], "def stop(*_): signal.raise_signal(signal.SIGKILL)"),
        *(76, "worker . was killed by SIGKILL"),
    ),
    # Ctrl-C twice ends even those that do not listen.
    "ctrl-c twice": ([signal.SIGINT, signal.SIGINT], "def stop(*_): pass", 130, "interrupted before the run was saved"),
    "too early": ([signal.SIGTERM], "stop = signal.SIG_DFL", 75, "stopped before training started"),
    "ctrl-c too early": ([signal.SIGINT], "stop = signal.default_int_handler", 75, "before training started"),
}
# How those programs go on.
LISTENING = """
signal.signal(signal.SIGTERM, stop), signal.signal(signal.SIGINT, stop), signal.signal(signal.SIGUSR1, stop)
print("listening")
while True: time.sleep(0.1)
"""
CASES = EXITS | SIGNALS
SLOW_CASES = ("finished", "stopped", "usr1", "hangup", "ctrl-c too early")


def exit_of(name, folder):
    """Runs a case of `EXITS`; returns the exit code and the output."""
    program, own, _, _ = EXITS[name]
    with launched(supervising(program, **own), MARKS=str(folder)) as process:
        return finish(process, 60)


def exit_after_signals(name, folder):
    """Runs a case of `SIGNALS`; returns the exit code and the output."""
    numbers, program, _, _ = SIGNALS[name]
    with launched(supervising(program + LISTENING, grace=0.5)) as process:
        heard = sorted(process.stdout.readline() for _ in range(2))
        assert heard == ["[0] listening\n", "[1] listening\n"], heard
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.3)
        return finish(process, 60)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Name -> exit code and output of the cases of `EXITS` and `SIGNALS` that are not slow; three at a time."""
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = {
            name: pool.submit(exit_of if name in EXITS else exit_after_signals, name, tmp_path_factory.mktemp("case"))
            for name in CASES
            if name not in SLOW_CASES
        }
    return {name: future.result() for name, future in found.items()}


@pytest.mark.parametrize("name", [slow(name) if name in SLOW_CASES else name for name in CASES])
def test_exit_code_is_that_of_the_first_failure_or_of_a_signal_that_is_forwarded(request, tmp_path, name):
    *_, code, words = CASES[name]
    run = exit_of if name in EXITS else exit_after_signals
    got, output = run(name, tmp_path) if name in SLOW_CASES else request.getfixturevalue("ended")[name]
    assert got == code and re.search(words, output, re.MULTILINE), output


def test_output_has_whole_lines_with_the_rank(tmp_path):
    program = r"""
assert not sys.stdout.isatty() and not sys.stderr.isatty()
if rank == 0:
    for done in range(5):
        print(f"\r bar {done}", end="", flush=True)
        time.sleep(0.2)
    print("\rsaved\r\n", end="")
    print("no end", end="")
else:
    time.sleep(0.5)
    print("hello")
    print("trouble", file=sys.stderr)
"""
    written = on_a_terminal(supervising(program), subprocess.Popen)
    lines = written.split("\r\n")
    assert lines[-1] == "" and sorted(lines[:-1]) == ["[0] no end", "[0] saved", "[1] hello", "[1] trouble"], written
    assert lines.index("[0] saved") < lines.index("[0] no end"), written


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workers=2", "digits"], "tfdist launch --workers=2 -- digits"),
        slow(["--", f"--config={CONFIG}"], "set the number of workers to start, such as --workers=2"),
        (["--workers=two", "--", f"--config={CONFIG}"], "--workers: must be a whole number and at least 1"),
        (["--workers=2", "--", CONFIG, "--max_restarts=1"], "--max_restarts=1 is a flag of the launcher: "),
        (["--workers=2", "--", f"--config={CONFIG}", "--config.train.epoch=3"], "config.train.epoch"),
        (["--workers=2", "--max-restart=1", "--", f"--config={CONFIG}"], "max-restart"),
        (["--workers=2", "--", "my_none.py", "--epochs=3"], "there is no file"),
        (["--workers=2", "--", "all_reduce", "--config=digits"], "A command of tfdist is -m tfdist COMMAND."),
        (["--workers=2", "--", "no-such-program"], "there is no program 'no-such-program'. After the launcher's flags"),
    ],
)
def test_launcher_refuses_wrong_flags_before_it_starts_workers(arguments, words):
    done = python("-m", "tfdist.launch", *arguments, code=1)
    assert words in done.stdout + done.stderr, done
    assert "Traceback" not in done.stderr and "[0]" not in done.stdout


@pytest.mark.parametrize(
    "start",
    [
        ("--workers=2", "--max-restarts=0", "--", "-m", "my_script"),
        slow(("--workers", "2", "--", sys.executable, "-u", "my_script.py")),
    ],
    ids=["module", "program"],
)
def test_launcher_passes_a_program_its_own_flags(tmp_path, start):
    (tmp_path / "my_script.py").write_text(
        "import json, os, sys\ntask = json.loads(os.environ['TF_CONFIG'])['task']\n"
        "print(task['index'], os.environ['TF_CPP_MIN_LOG_LEVEL'], *sys.argv[1:])\n"
        "print('dlopen', file=sys.stderr)\n"
    )
    line = ("-m", "tfdist.launch", *start, "--workers=5", "-h", "--", "x y")
    done = python(*line, start=subprocess.run, cwd=tmp_path, PYTHONPATH=str(REPOSITORY))
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] {rank} 3 --workers=5 -h -- x y" for rank in range(2)]
    assert sorted(done.stderr.splitlines()) == [f"[{rank}] dlopen" for rank in range(2)]


@pytest.mark.slow
def test_a_script_is_trained_once_over_all_workers(tmp_path):
    """It was trained by each worker alone, on all data, side by side, and the exit code was 0."""
    (tmp_path / "unchanged.py").write_text(
        "import keras, numpy as np, tfdist\n"
        "class Layer:\n    def get_config(self): pass\n"  # No config.
        "x = np.zeros((8, 1), 'float32')\n"
        "model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])\nmodel.compile('sgd', 'mse')\n"
        "model.fit(x, x, batch_size=4, verbose=2)\nprint('trained', len(x))\n"
    )
    words = ("-m", "tfdist.launch", "--workers=2", "--", "unchanged.py")
    done = python(*words, start=subprocess.run, cwd=tmp_path, PYTHONPATH=str(REPOSITORY))
    assert done.stdout.count("trained 8") == 1 and "[0] worker 1 of 2" in done.stdout, done


def test_the_launcher_knows_configs_scripts_and_scripts_that_connect(tmp_path):
    (tmp_path / "own.py").write_text("import tfdist\ntfdist.connect()\n")
    (tmp_path / "unchanged.py").write_text("class Layer:\n    def get_config(self): pass\n")  # No config.
    (tmp_path / "config.py").write_text("from base import (\n    get_config,\n)\n")
    run = [sys.executable, "-m", "tfdist.run"]
    assert launch.worker_command([str(tmp_path / "unchanged.py"), "x"]) == [*run, str(tmp_path / "unchanged.py"), "x"]
    assert launch.worker_command([str(tmp_path / "own.py"), "x"]) == [sys.executable, str(tmp_path / "own.py"), "x"]
    assert launch.worker_command([str(tmp_path / "config.py"), "x"]) == []
    assert launch.worker_command(["run", "--workdir=a", "b.py"])[1:] == ["-m", "tfdist.run", "--workdir=a", "b.py"]


SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_DISTRIBUTION": "block",
    "SLURM_GTIDS": "0,1",
    "SLURMD_NODENAME": "n1",
}
MPI = {
    f"OMPI_COMM_WORLD_{name}": value
    for name, value in {"RANK": "1", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "4"}.items()
}
TWO = {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}})}


@pytest.mark.parametrize(
    ("env", "words"),
    [(SLURM, "already process 0 of 2, started by slurm; "), (MPI, "already process 1 of 4, started by mpi; ")],
)
def test_launcher_refuses_to_run_under_another_launcher(env, words):
    with pytest.raises(ValueError, match=words):
        local_workers.check_single_process(env)


def test_the_refusal_is_one_line(tmp_path):
    done = python(*launching(tmp_path)[1:], code=1, start=subprocess.run, **TWO)
    assert done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith("tfdist.launch: this is already process 1 of 2")


def test_launcher_starts_as_the_only_task_of_a_job():
    alone = SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_GTIDS": "0"}
    assert local_workers.check_single_process({}) == local_workers.check_single_process(alone) == ""
    assert "srun" in local_workers.check_single_process({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"})


def test_gpus_are_divided_among_the_workers():
    assert host_gpus.assigned_gpus({"CUDA_VISIBLE_DEVICES": "3,GPU-ab, 5"}) == ("3", "GPU-ab", "5")
    assert host_gpus.assigned_gpus({"CUDA_VISIBLE_DEVICES": ""}) == ()
    assert host_gpus.assigned_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == ()
    assert local_workers.divide_gpus(("0", "1", "2", "3", "4"), 2) == [("0", "1"), ("2", "3")]
    assert local_workers.divide_gpus((), 2) == [(), ()]
    with pytest.raises(ValueError, match=r"--workers=3, but there are 2 GPU\(s\)"):
        local_workers.divide_gpus(("0", "1"), 3)
    addresses = ["localhost:11", "localhost:12"]
    first, second = local_workers.environments({"HOME": "/h", "TF_CONFIG": ""}, addresses, [("0", "1"), ("2", "3")])
    assert (first["CUDA_VISIBLE_DEVICES"], second["CUDA_VISIBLE_DEVICES"]) == ("0,1", "2,3")
    assert json.loads(second["TF_CONFIG"]) == {
        "cluster": {"worker": addresses},
        "task": {"type": "worker", "index": 1},
    }
    assert local_workers.environments({"HOME": "/h", "TF_CONFIG": ""}, [], [()]) == [{"HOME": "/h"}]


def test_ports_stay_reserved_and_workers_can_listen_at_them():
    reserved = local_workers.reserve_ports(20)
    ports = [sock.getsockname()[1] for sock in reserved]
    assert len(set(ports)) == 20
    listening = listener.listen(ports[0])
    with pytest.raises(OSError), contextlib.closing(socket.socket()) as stranger:
        stranger.bind(("", ports[1]))
    for sock in [listening, *reserved]:
        sock.close()


def test_all_output_reaches_a_pipe_that_another_program_has_made_non_blocking():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data, found = bytes(range(256)) * 2000, bytearray()

    def read():
        while part := os.read(reader, 4096):
            found.extend(part)

    thread = threading.Thread(target=read)
    thread.start()
    processes_lib._write(writer, data)
    os.close(writer)
    thread.join()
    os.close(reader)
    assert bytes(found) == data
