"""What the time of runs was spent on: the ledger of a start, the sums over starts and jobs, and energy."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time

import pytest
from test_many_runs import write_run

from tfdist.cluster.devices import energy
from tfdist.report import interpreter, ledger, read_back
from tfdist.tools.many_runs import bills, run_state

# As sacct 22.05 prints a job that was requeued once, has run twice and waits again.
SACCT = """\
7|2026-11-25T10:00:00|2026-11-25T10:01:00|2026-11-25T10:11:00|3600000
7|2026-11-25T10:11:00|2026-11-25T10:13:00|Unknown|
7|2026-11-25T10:14:00|Unknown|Unknown|
"""


def write_starts(workdir, *starts):
    """Writes starts.jsonl as a run does; each start: (begin, end, first step, last step, steps done, how it ended)."""
    lines = []
    for begin, end, first, last, done, how in starts:
        seconds = dict.fromkeys(ledger.CAUSES, 0.0) | {"start": 10.0, "steps": end - begin - 20.0, "input": 10.0}
        line = {"start": begin, "now": end, "first_step": first, "step": last, "steps_done": done, "end": how}
        line |= {"seconds": seconds, "replicas": 2, "job": "7", "joules": {"gpu": 3.6e6}, "text": ""}
        lines.append(json.dumps(line).ljust(800) + "\n")
    (workdir / "starts.jsonl").write_text("".join(lines))


def test_each_moment_has_one_cause(tmp_path):
    book = ledger.open_ledger(tmp_path, 5, {"replicas": 1})
    opened = time.time()
    for cause in ("compilation", "steps", "evaluation"):
        with book.during(cause):
            time.sleep(0.02)
            with book.during("checkpoints"):
                time.sleep(0.01)
    book.note_execution(9, 4, 0.005)
    book.enter("steps")
    time.sleep(0.02)
    assert book.note_end("lost", "worker 1 is lost") and not book.note_end("finished")
    book.close()
    (start,) = read_back.read_starts(tmp_path)
    seconds = start["seconds"]
    assert sum(seconds.values()) == pytest.approx(start["now"] - start["start"], abs=0.01)
    assert start["start"] <= opened < start["now"]
    assert seconds["checkpoints"] >= 0.03 and seconds["input"] == pytest.approx(0.005, abs=0.001)
    assert seconds["fault"] >= 0.02 and seconds["steps"] >= 0.01
    assert (start["first_step"], start["step"], start["steps_done"], start["end"]) == (5, 9, 4, "lost")
    again = ledger.open_ledger(tmp_path, 9, {})
    assert again.started == pytest.approx(start["now"], abs=0.01)  # The next fit of this process.
    again.close()
    assert [each["first_step"] for each in read_back.read_starts(tmp_path)] == [5, 9]
    assert ledger.open_ledger(tmp_path / "missing", 0, {}).place is None
    until = time.monotonic() + 30
    while any(thread.name == "tfdist-ledger" for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_clock_that_is_set_does_not_change_the_durations(tmp_path, monkeypatch):
    book = ledger.open_ledger(tmp_path, 0, {})
    age, begun, clock, off = interpreter.age(), time.monotonic(), time.time, [7200.0]
    monkeypatch.setattr(time, "time", lambda: clock() + off[0])
    book.enter("evaluation")
    off[0] = -7200.0
    time.sleep(0.05)
    book.enter("steps")
    assert 0.05 <= book.seconds["evaluation"] <= time.monotonic() - begun
    assert sum(book.seconds.values()) <= age + time.monotonic() - begun + 0.1
    book.close()
    (start,) = read_back.read_starts(tmp_path)
    assert start["now"] == pytest.approx(clock() - 7200, abs=5)  # A time of day, as the start of the next one.
    assert run_state.read(tmp_path).hours == pytest.approx(sum(start["seconds"].values()) / 3600)


def test_the_age_of_a_process_is_precise():
    before = time.time()
    with subprocess.Popen(["sleep", "60"]) as process:
        after = time.time()
        age = interpreter.process_age(process.pid)
        now = time.time()
        process.kill()
    assert now - after - 0.02 <= age <= now - before + 0.02  # Linux tells the start in hundredths of a second.


@pytest.mark.slow
def test_the_time_of_a_shell_before_python_is_not_that_of_the_interpreter():
    code = "import time; time.sleep(0.3); from tfdist.report import interpreter as i; print(i.process_age(), i.age())"
    python = shlex.join([sys.executable, "-c", code])
    process, interpreter_age = ages("bash", "-c", f"sleep 2 && exec {python}")
    assert 0 < interpreter_age < process - 2
    process, interpreter_age = ages("bash", "-c", f"exec {python}")
    assert interpreter_age == pytest.approx(process, abs=0.1) and interpreter_age > 0.3


def ages(*command):
    """The age of the process and of the interpreter, which the command prints."""
    process, interpreter_age = subprocess.check_output(command, text=True).split()
    return float(process), float(interpreter_age)


def test_a_long_line_and_damaged_lines(tmp_path):
    book = ledger.open_ledger(tmp_path, 0, {"host": "h" * 200})
    book.note_end("failed", "\u00e4" * 5000)
    book.close()
    path = tmp_path / "starts.jsonl"
    (start,) = read_back.read_starts(tmp_path)
    assert start["end"] == "failed" and start["text"] == 125 * "\u00e4" and path.stat().st_size % 512 == 0
    odd = '{"start": "x", "now": [], "seconds": {"start": "y"}, "step": "z"}\n'
    path.write_text('{"seconds": 3}\n' + odd + path.read_text() + '{"start": 1, "seco')
    assert len(read_back.read_starts(tmp_path)) == 1 and read_back.read_starts(tmp_path / "missing") == []


def test_steps_that_are_repeated_count_once(tmp_path):
    workdir = write_run(tmp_path / "a", finished=True)
    write_starts(workdir, (1000, 1100, 0, 40, 40, ""), (1200, 1300, 30, 50, 20, "finished"))
    bill = bills.of_run(workdir, "a", state="finished")
    assert bill.seconds[bills.COUNT] == 80 * 30 / 40 + 80 and bill.seconds["input"] == 10 * 30 / 40 + 10
    assert bill.seconds[bills.AGAIN] == 90 * 10 / 40 and bill.seconds[bills.BETWEEN] == 100
    assert sum(bill.seconds.values()) == 300 and sum(bill.replica_seconds.values()) == 400
    assert bill.goodput == 2 * 140 / 400 and bill.ettr == 140 / 300 and bill.joules == {"gpu": 7.2e6}
    assert run_state.read(workdir).hours == 200 / 3600 and run_state.read(workdir).state == "finished"
    # A lost run without a checkpoint has nothing that counts; a rollback repeats steps within a start.
    write_starts(workdir, (1000, 1100, 0, 40, 40, "lost"))
    assert bills.of_run(workdir, "a").seconds[bills.COUNT] == 0
    write_starts(workdir, (1000, 1100, 0, 40, 80, "finished"))
    assert bills.of_run(workdir, "a").seconds[bills.COUNT] == 40
    assert bills.of_run(write_run(tmp_path / "old"), "old") is None


def test_the_queue_is_that_of_the_accounting(tmp_path):
    now = time.mktime(time.strptime("2026-11-25T10:20:00", "%Y-%m-%dT%H:%M:%S"))
    jobs = bills.parse_accounting(SACCT, now)
    assert [job.ended - job.started for job in jobs] == [600, 420] and jobs[0].joules == 3.6e6
    first = jobs[0].started
    workdir = write_run(tmp_path / "a")
    # The processes begin 5 s after their jobs; the first one was killed 20 s before the end of its job.
    write_starts(workdir, (first + 5, first + 580, 0, 40, 40, ""), (first + 725, now, 40, 50, 10, "finished"))
    bill = bills.of_run(workdir, "a", jobs)
    assert bill.seconds[bills.QUEUE] == 60 + 120 and bill.seconds[bills.OUTSIDE] == 5 + 20 + 5
    assert bill.seconds[bills.BETWEEN] == 0 and bill.replica_seconds[bills.QUEUE] == 0
    assert sum(bill.seconds.values()) == now - jobs[0].submitted and bill.joules == {"job": 3.6e6}
    both = bills.total([bill, bill], "all")
    assert both.seconds[bills.QUEUE] == 360 and both.starts == 4 and both.goodput == bill.goodput
    assert bills.jobs_of(workdir) == {"7"}


def test_a_job_of_several_runs_is_billed_once(tmp_path):
    """Two calls of fit of a script, whose job was requeued during the second; and a run beside the second."""
    now = time.mktime(time.strptime("2026-11-25T10:20:00", "%Y-%m-%dT%H:%M:%S"))
    jobs = bills.parse_accounting(SACCT, now)
    first, second = jobs[0].started, jobs[1].started
    given = {
        "fit1": [(first + 5, first + 205, 0, 40, 40, "finished")],
        "fit2": [(first + 210, first + 590, 0, 40, 40, ""), (second + 5, now, 40, 50, 10, "finished")],
        "beside": [(first + 211, first + 580, 0, 40, 40, ""), (second + 6, now, 40, 50, 10, "finished")],
    }
    for name, starts in given.items():
        write_starts(write_run(tmp_path / name), *starts)
    starts = {name: read_back.read_starts(tmp_path / name) for name in given}
    found = {}
    for name in given:
        others = [start for other in given if other != name for start in starts[other]]
        found[name] = bills.of_run(tmp_path / name, name, jobs, others=others)
    assert {name: bill.seconds[bills.QUEUE] for name, bill in found.items()} == {"fit1": 60, "fit2": 120, "beside": 0}
    assert {name: bill.seconds[bills.OUTSIDE] for name, bill in found.items()} == {"fit1": 5, "fit2": 20, "beside": 0}
    assert {name: bill.joules["job"] for name, bill in found.items()} == {"fit1": 3.6e6, "fit2": 0, "beside": 0}


def test_the_command_prints_tables_and_writes_a_picture_and_json(tmp_path):
    for name in ("a", "b", "old"):
        write_run(tmp_path / "runs" / name, finished=True)
    for name in ("a", "b"):
        write_starts(tmp_path / "runs" / name, (1000, 1100, 0, 40, 40, ""), (1200, 1300, 30, 50, 20, "finished"))
    command = [sys.executable, "-m", "tfdist", "cost", "runs", "--out=reports"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "runs/old has no starts.jsonl" in done.stderr, done.stderr
    assert "4 starts, goodput 70.0%, ETTR 46.7%; energy: 4 kWh (gpu)" in done.stdout, done.stdout
    assert "steps done again" in done.stdout and "100.0%" in done.stdout
    values = json.loads((tmp_path / "reports" / "cost.json").read_text())
    assert [run["name"] for run in values["runs"]] == ["a", "b"] and values["all"]["seconds_in_all"] == 600
    assert "What the time was spent on" in (tmp_path / "reports" / "cost.svg").read_text()


def test_energy_of_processors_wraps_around(tmp_path):
    for name, value in {"intel-rapl:0": 500_000_000, "intel-rapl:1": 0, "intel-rapl:0:0": 7}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{value}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("1000000000\n")
    read = energy.meter({"CUDA_VISIBLE_DEVICES": ""}, tmp_path)
    assert read() == {"processor": 0.0}
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("100000000\n")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("2000000\n")
    assert read() == {"processor": 602.0}
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert energy.meter({"CUDA_VISIBLE_DEVICES": ""}, tmp_path / "none")() == {}


NVML = """
#include <stdlib.h>
#include <string.h>
static long gpus[3] = {0, 1, 2};
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) { *gpu = &gpus[index]; return index > 2; }
int nvmlDeviceGetHandleByUUID(const char *name, void **gpu) { *gpu = &gpus[2]; return strcmp(name, "GPU-c"); }
int nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *joules) {
    static unsigned long long reads[3];
    *joules = 1000ull * ++reads[*(long *)gpu] << (4 * *(long *)gpu);
    return 0;
}
"""
READ = (
    "import sys; from tfdist.cluster.devices import energy; read = energy.meter({'CUDA_VISIBLE_DEVICES': sys.argv[1]})"
)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_energy_is_that_of_the_visible_gpus(tmp_path):
    """In place of the driver, a library whose GPUs use 1, 16 and 256 joules from one call to the next."""
    (tmp_path / "nvml.c").write_text(NVML)
    command = ["cc", "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", tmp_path / "nvml.c"]
    subprocess.run(command, check=True)
    found = {}
    for visible in ("0, 1", "0,-1,1", "GPU-c,0", "", "NoDevFiles"):
        done = subprocess.run(
            [sys.executable, "-c", f"{READ}; read(); print(read().get('gpu'))", visible],
            **{"env": os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}, "capture_output": True, "text": True},
        )
        found[visible] = done.stdout.strip()
    assert found == {"0, 1": "17.0", "0,-1,1": "1.0", "GPU-c,0": "257.0", "": "None", "NoDevFiles": "None"}
