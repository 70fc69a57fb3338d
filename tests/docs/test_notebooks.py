"""The notebook runs from its first cell to its last, and its workers train."""

import json
import os

import pytest
from launching import REPOSITORY, worker_environment
from processes import until

NOTEBOOK = REPOSITORY / "docs/notebooks/digits.ipynb"


def kernel_environment(folder):
    """The environment of a kernel whose training goes to `folder`/run."""
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    env = worker_environment(NOTEBOOK_WORKDIR=str(folder / "run"), PYTHONPATH=path, IPYTHONDIR=str(folder))
    del env["PYTEST_CURRENT_TEST"]  # With it, the kernel does not show what commands print.
    return env


def test_the_notebook_is_stored_without_outputs():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) == 5 and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.slow
def test_the_notebook_trains_in_its_kernel_and_on_two_workers(tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="install tfdist[notebooks]")
    pytest.importorskip("ipykernel", reason="install tfdist[notebooks]")
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    env = kernel_environment(tmp_path)
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(NOTEBOOK.parent)}})
    client.execute(env=env)
    texts = [
        "".join(output.get("text", "") for output in cell["outputs"])
        for cell in notebook.cells
        if cell["cell_type"] == "code"
    ]
    assert "Epoch 3/3" in texts[1] and "val_accuracy" in texts[1]
    assert "worker 1 of 2" in texts[2] and "finished after step 110" in texts[2]
    assert "step 110: accuracy 0.9" in texts[3]  # A class is shown a model that has learned.
    assert "the model says [" in texts[4]


@pytest.mark.slow
def test_interrupt_saves_the_training_of_a_cell(tmp_path):
    """IPython's "!" would kill the command before it has saved."""
    manager = pytest.importorskip("jupyter_client.manager", reason="install tfdist[notebooks]")
    pytest.importorskip("ipykernel", reason="install tfdist[notebooks]")
    code = ["".join(c["source"]) for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]
    kernel = manager.KernelManager()
    kernel.start_kernel(env=kernel_environment(tmp_path), cwd=str(tmp_path))
    client = kernel.client()
    client.start_channels()
    metrics = tmp_path / "run" / "metrics.jsonl"
    try:
        client.wait_for_ready(timeout=120)
        client.execute(code[0])
        client.execute(code[2].replace("epochs=2", "epochs=2000"))
        until(lambda: metrics.exists() and '"kind": "train"' in metrics.read_text(), 400, lambda: "no training")
        kernel.interrupt_kernel()
        until(lambda: "stopped by SIGINT and saved" in metrics.read_text(), 60, metrics.read_text)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
