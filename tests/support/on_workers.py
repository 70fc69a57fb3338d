"""Runs a function of a test file or of tests/support in worker processes: `call(fits.measure, names, workers=2)`."""

import inspect
import pathlib
import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from launching import REPOSITORY, run_all
from topologies import environments

Run = Callable[[list[list[str]], list[dict[str, str]]], Any]


def call(
    function: Callable[..., Any],
    *arguments: Any,
    workers: int = 1,
    hosts: Sequence[str] = (),
    variables: dict[str, str] | None = None,
    run: Run = lambda *processes: run_all(*processes, timeout=1800.0),
) -> list[Any]:
    """Calls `function(*arguments)` in each of several processes at the same time, which TF_CONFIG makes workers.

    Args:
        function: it and its arguments are pickled, and so are its results.
        *arguments: for all workers.
        workers: the number of processes.
        hosts: the names that the workers have for this machine.
        variables: more of the environment.
        run: runs commands in environments, and checks how they end.

    Returns:
        The result on each worker; None where the function did not return.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = pathlib.Path(folder, "call")
        given.write_bytes(pickle.dumps((function, arguments)))
        paths = [pathlib.Path(folder, str(rank)) for rank in range(workers)]
        folder_of_module = str(pathlib.Path(inspect.getfile(function)).parent)
        commands = [[sys.executable, __file__, str(given), str(path), folder_of_module] for path in paths]
        run(commands, environments(workers, hosts, **variables or {}))
        return [pickle.loads(path.read_bytes()) if path.exists() else None for path in paths]


if __name__ == "__main__":
    sys.path += [sys.argv[3], str(REPOSITORY)]  # The latter for the packages `configs` and `tests`.
    function, arguments = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
    pathlib.Path(sys.argv[2]).write_bytes(pickle.dumps(function(*arguments)))
