"""Prints what the shipped configs reach: `python -m tfdist recipes DIR...`, a Markdown table of the finished runs.

A row is a config with its overridden fields; runs that differ only in their seed are one row, with the mean of the last
evaluation and its standard deviation over the seeds. Times are medians. Every number is read from the files of the
runs; a shipped config without a finished run says so.

    python -m tfdist recipes runs > recipes.md
"""

import collections
import re
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist import configs
from tfdist.config.command_line import tool_words, words
from tfdist.report import files, metrics_file, read_back, run_info
from tfdist.tools import tables
from tfdist.tools.many_runs import differences, find
from tfdist.tools.many_runs.run_state import RunState

USAGE = "[DIR...]"
HEADER = (
    *("config", "data", "network", "batch", "hardware", "replicas", "minutes", "examples/s", "last evaluation", "runs"),
    *("memory of the chief, MiB", "command", "commit"),
)
_NOT_RUN = "not run"
# Words of a command that do not describe the run.
_LEFT_OUT = re.compile(
    r"--(workdir=|config(=|$)|allow_config_changes|config\.seed=|config\.report\.|config\.checkpoint\.)|-m$"
)


def define_flags() -> None:
    """Defines no flags."""


parse = tool_words.parse_words


def main(argv: list[str]) -> None:
    """Prints the table; to standard error what cannot be read."""
    runs, problems = find.read_all([Path(word).expanduser() for word in argv[1:] or ["runs"]])
    for line in problems:
        print(f"tfdist recipes: {line}", file=sys.stderr)
    print(markdown(HEADER, table(runs)))


def shipped_names() -> list[str]:
    """Returns the names of the shipped configs."""
    found = sorted(path for path in configs.FOLDER.glob("*.py") if "def get_config(" in path.read_text())
    return [path.stem for path in found]


def table(runs: Sequence[RunState]) -> list[list[Any]]:
    """Returns the rows of `HEADER`: of each shipped config those of its finished runs, or one that says "not run"."""
    groups = collections.defaultdict(list)
    for run in runs:
        environment = files.read_json(run.workdir / run_info.ENVIRONMENT) or {}
        name, options = _command_of(run.workdir, environment) if run.state == "finished" else ("", [])
        if name:
            kept = [word for word in options if word.startswith("--") and not _LEFT_OUT.match(word)]
            key = name, " ".join(shlex.quote(word) for word in kept), differences.topology(environment)
            groups[key].append((run, environment))
    names = shipped_names()
    absent = [name for name in names if name not in {key[0] for key in groups}]
    rows = [[{"config": name, "last evaluation": _NOT_RUN}.get(column) for column in HEADER] for name in absent]
    rows += [_row(*key, found) for key, found in groups.items() if key[0] in names]
    return sorted(rows, key=lambda row: names.index(row[0]))


def _command_of(workdir: Path, environment: dict[str, Any]) -> tuple[str, list[str]]:
    """Returns the name of a run's config, "" for a script, and the flags of all its starts; later flags win."""
    records = read_back.read_records(workdir / metrics_file.METRICS)
    starts = [record for record in records if record.get("kind") == "environment" and "command" in record]
    path, options = "", {}
    for start in starts or [environment]:
        command = start.get("command", [])[1:]
        given = {flag.name: words.in_one_word(flag) for flag in words.read_flags(command)}
        path = start.get("config_file") or words.config_path(command) or path
        # Resumed by its workdir, it has the flags of before.
        options = given if "allow_config_changes" in given else options | given
    return Path(path.partition(":")[0]).stem, [*options.values()]


def _row(name: str, options: str, hardware: str, found: Sequence[tuple[RunState, dict[str, Any]]]) -> list[Any]:
    first = found[0][0]
    config, metric = first.config, first.config.get("checkpoint.best_metric") or "loss"
    values = [run.last[metric] for run, _ in found if run.last.get(metric) is not None]
    deviation = f" ± {statistics.stdev(values):.2g}" if len(values) > 1 else ""
    reached = f"{metric} {statistics.mean(values):.4g}{deviation}" if values else None
    data = str((files.read_json(first.workdir / "data.json") or {}).get("examples", "-")).partition(": ")[0]
    network = config.get("model.name") or str(config.get("model.target", "-")).rpartition(":")[2]
    starts = [read_back.read_starts(run.workdir) for run, _ in found]
    memory = [max(peaks) for each in starts if (peaks := [one["memory_mib"] for one in each if "memory_mib" in one])]
    commits = {str((each.get("git") or {}).get("commit", "-"))[:10] for _, each in found}
    return [
        *(name, data, network, config.get("data.batch_size"), hardware, first.replicas),
        _median([60 * run.hours for run, _ in found if run.hours is not None]),
        *(_median([run.examples_per_second for run, _ in found if run.examples_per_second is not None]), reached),
        *(len(found), _median(memory), f"`tfdist train {name}{' ' * bool(options)}{options}`"),
        ", ".join(sorted(commits)),
    ]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def markdown(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a table in Markdown."""
    shown = [[tables.format_value(value).replace("|", "\\|") for value in row] for row in rows]
    lines = [header, ["---"] * len(header), *shown]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
