"""Fixtures of several test files, the mark of each test, and the order of the files."""

import collections
import functools
import gc
import itertools
import os
import pathlib
import shutil
import signal
import sys
import tempfile

import accelerators
import forked
import pytest
from processes import REPOSITORY
from slurm_cluster import slurm_cluster

TESTS = pathlib.Path(__file__).parent
# What the tests of a directory are where they do not say it themselves; files of tests/ itself are unit tests.
KINDS = {
    "unit": "unit",
    "unit/zoo": "zoo",
    "golden": "workers",
    "workers": "workers",
    "slurm": "slurm",
    "docs": "docs",
    "gpu": "gpu",
}
# A line a file: how many seconds its tests have taken, and its path; `--record-durations` rewrites it.
DURATIONS = TESTS / "durations.txt"
# What the repository's root holds before the tests run.
ROOT_BEFORE = pytest.StashKey[set[str]]()

# The imports of all test files create millions of objects that stay: collections of garbage would take a tenth of the
# processor time of pytest's own collection.
gc.set_threshold(*forked.GC_THRESHOLD)

# Only the tests marked gpu use GPUs: the others give the same results on every machine.
os.environ.setdefault(accelerators.VISIBLE, os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_configure(config: pytest.Config) -> None:
    """Gives the tests a home of their own: workers keep a key in it, which is not to be that of the user."""
    if not hasattr(config, "workerinput"):  # The processes of pytest-xdist inherit it.
        home = tempfile.TemporaryDirectory(prefix="tfdist-tests-home-")
        config.add_cleanup(home.cleanup)
        copy_list_of_fonts(pathlib.Path.home(), pathlib.Path(home.name))
        os.environ["HOME"] = home.name
        config.stash[ROOT_BEFORE] = set(os.listdir(REPOSITORY))


def copy_list_of_fonts(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies Matplotlib's list from one home to another: else every process at the start looks for all fonts again."""
    folder = pathlib.Path(".cache", "matplotlib")
    for path in (source / folder).glob("fontlist-*.json"):
        (target / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target / folder)


def durations() -> dict[str, float]:
    """How many seconds each file of tests takes, by its path in tests/."""
    pairs = (line.split() for line in DURATIONS.read_text().splitlines())
    return {path: float(seconds) for seconds, path in pairs}


def pytest_unconfigure() -> None:
    """Leaves no process behind."""
    forked.end_servers()


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "write how long the files of this run have taken to tests/durations.txt; run all tests with it"
    parser.addoption("--record-durations", action="store_true", help=help)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--record-durations"):
        seconds: collections.Counter[str] = collections.Counter()
        for report in itertools.chain(*terminalreporter.stats.values()):
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0].removeprefix("tests/")] += report.duration
        lines = [f"{value:.0f} {path}\n" for path, value in seconds.most_common() if value >= 1]
        DURATIONS.write_text("".join(lines))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the run if it has left a file or folder in the repository's root."""
    if ROOT_BEFORE in session.config.stash:
        new = set(os.listdir(REPOSITORY)) - session.config.stash[ROOT_BEFORE] - {".pytest_cache"}
        if new:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            print(
                f"\nThese tests have left {', '.join(sorted(new))} in {REPOSITORY}: write it to a temporary directory"
            )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks each test that has no mark of its own by its directory; the longest files come first.

    pytest-xdist hands out whole files in this order, so that no worker is left alone with a long one.
    """
    for item in items:
        if not any(item.get_closest_marker(kind) for kind in (*KINDS.values(), "slow")):
            folder, *below = item.path.relative_to(TESTS).parts
            item.add_marker(KINDS.get("/".join([folder, *below[:1]]), KINDS.get(folder, "unit")))
    seconds = {TESTS / path: value for path, value in durations().items()}
    items.sort(key=lambda item: (-seconds.get(item.path, 0.0), str(item.path)))


def pytest_collection_finish() -> None:
    """Sets up this process as `forked` does its children: without graph optimizers.

    Also excludes what the imports created from garbage collection, which `keras.utils.clear_session` runs each time,
    and iterators from autotuning: those that a collection closes after minutes would stall it for up to a minute.
    """
    if "tensorflow" in sys.modules:
        forked.disable_graph_optimizers()
        iterate_without_autotuning(sys.modules["tensorflow"].data.Dataset)
    gc.collect()
    gc.freeze()


def iterate_without_autotuning(kind: type) -> None:
    """Makes the iterators of this process' datasets close at once."""
    from tfdist.data import read_ahead

    original = kind.__iter__
    kind.__iter__ = functools.wraps(original)(lambda dataset: original(read_ahead.without_autotuning(dataset)))


@pytest.fixture(scope="session", autouse=True)
def base_of_temporary_folders(tmp_path_factory):
    """Makes the folder of a process before several threads of a test ask for folders in it."""
    tmp_path_factory.getbasetemp()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A real Slurm of two nodes whose order as text, n10 before n9, is not Slurm's.

    Each has two GPUs, which exist for Slurm alone: TensorFlow finds none, and trains on the CPU.
    """
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), nodes=("n9", "n10"), gpus=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def graph_optimizers():
    """Gives forked processes TensorFlow's graph optimizers, which all others have: for equal bits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(forked.OPTIMIZE, "1")
        yield


@pytest.fixture
def own_signals():
    """Gives pytest its signals back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def own_process(own_signals, monkeypatch):
    """Finds tests.support.lab as `python -m tfdist.main` does, and gives pytest its signals back."""
    monkeypatch.syspath_prepend(REPOSITORY)
