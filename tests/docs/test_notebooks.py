"""The notebook runs from its first cell to its last, and its workers train."""

import json
import os

import pytest
from launching import REPOSITORY, worker_environment

NOTEBOOK = REPOSITORY / "docs/notebooks/digits.ipynb"


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
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    env = worker_environment(NOTEBOOK_WORKDIR=str(tmp_path / "run"), PYTHONPATH=path, IPYTHONDIR=str(tmp_path))
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(NOTEBOOK.parent)}})
    client.execute(env=env)
    texts = [
        "".join(output.get("text", "") for output in cell["outputs"])
        for cell in notebook.cells
        if cell["cell_type"] == "code"
    ]
    assert "Epoch 3/3" in texts[1] and "val_accuracy" in texts[1]
    assert "worker 1 of 2" in texts[2] and "finished after step 44" in texts[2]
    assert "step 44: accuracy 0." in texts[3]
    assert "the model says [" in texts[4]
