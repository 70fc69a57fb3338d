"""starts.jsonl: how long a start takes and how it ends."""

import subprocess
import sys
import time

import pytest

from tfdist import report
from tfdist.report import ledger, read_back
from tfdist.tools.many_runs import run_state


def test_the_first_end_counts_and_the_next_fit_of_a_process_begins_anew(tmp_path):
    book = ledger.open_ledger(tmp_path, 5, {"replicas": 1})
    assert book.note_end("lost", "worker 1 is lost") and not book.note_end("finished")
    time.sleep(0.02)
    again = ledger.open_ledger(tmp_path, 9, {})
    assert again.seconds() < book.seconds()
    assert [each["end"] for each in read_back.read_starts(tmp_path)] == ["lost", ""]
    ledger.open_ledger(tmp_path / "missing", 0, {}).note_end("finished")


def test_a_clock_that_is_set_does_not_change_the_durations(tmp_path, monkeypatch):
    book = ledger.open_ledger(tmp_path, 0, {})
    clock, off = time.time, [7200.0]
    monkeypatch.setattr(time, "time", lambda: clock() + off[0])
    off[0] = -7200.0
    time.sleep(0.05)
    assert 0.05 <= book.seconds() <= time.monotonic() - report.began
    book.note_end("finished")
    (start,) = read_back.read_starts(tmp_path)
    assert start["now"] == pytest.approx(clock() - 7200, abs=5)  # A time of day, as the start of the next one.
    assert run_state.read(tmp_path)["hours"] == pytest.approx(start["seconds"] / 3600)


def test_a_start_counts_from_the_first_import_and_not_from_the_start_of_a_shell_before():
    words = "import time; begun = time.monotonic(); from tfdist.report import ledger; time.sleep(0.2); "
    words += "book = ledger.open_ledger(None, 0, {}); print(0.2 < book.seconds() <= time.monotonic() - begun)"
    done = ["bash", "-c", 'sleep 0.5; exec "$0" -c "$1"', sys.executable, words]
    assert subprocess.check_output(done, text=True, timeout=60) == "True\n"


def test_a_long_line_and_damaged_lines(tmp_path):
    book = ledger.open_ledger(tmp_path, 0, {"host": "h" * 200})
    book.note_end("failed", "\u00e4" * 5000)
    path = tmp_path / "starts.jsonl"
    (start,) = read_back.read_starts(tmp_path)
    assert start["end"] == "failed" and start["text"] == 200 * "?" and path.stat().st_size % 512 == 0
    odd = '{"start": "x", "now": [], "seconds": {"start": 1}, "step": "z"}\n'
    path.write_text('{"seconds": 3}\n' + odd + path.read_text() + '{"start": 1, "seco')
    assert len(read_back.read_starts(tmp_path)) == 1 and read_back.read_starts(tmp_path / "missing") == []
