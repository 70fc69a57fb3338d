"""What a user of the wheel alone meets: `tfdist new`, the training, the run's commands, the pages, and types."""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile

import pytest
from launching import REPOSITORY

ROWS = "\n".join(f"{number},{number % 3 + 0.1 * (number % 5)},{'abc'[number % 3]}" for number in range(200))
TYPED = """
import tfdist
from tfdist import config as c

config = c.Config(model={"target": "a:b"}, data=c.Data(batch_size="64"))
reveal_type(tfdist.connect())
"""


@pytest.mark.slow
def test_the_wheel_alone_trains_on_a_table_and_has_pages_and_types(tmp_path):
    def run(*words, code=0):
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(REPOSITORY))
    wheel = next(tmp_path.glob("*.whl"))
    folders = {"tfdist": "tfdist", **{name: f"tfdist/shipped_{name}" for name in ("configs", "docs", "launch")}}
    names = [
        f"{to}/{path.relative_to(REPOSITORY / folder)}"
        for folder, to in folders.items()
        for path in (REPOSITORY / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert len(names) > 400
    with zipfile.ZipFile(wheel) as content:
        assert sorted({*names} - {*content.namelist()}) == []
    run(sys.executable, "-m", "venv", "--without-pip", "alone")
    site = tmp_path / "alone" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel))
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))  # TensorFlow; this tfdist comes first.
    python = str(tmp_path / "alone" / "bin" / "python")
    tfdist = (python, "-m", "tfdist")
    assert str(site) in run(python, "-c", "import tfdist; print(tfdist.__file__)")
    assert "your-data" in run(*tfdist, "docs") and "# Your data" in run(*tfdist, "docs", "your-data")
    # A shipped config, and the network that it names.
    assert "--config.model.target=tfdist.configs.networks.airbench:network" in run(*tfdist, "train", "cifar_fast", "-h")
    run(python, "-c", "import tfdist.configs.networks.airbench")

    (tmp_path / "t.csv").write_text(f"id,size,kind\n{ROWS}\n")
    assert "a class, of 3: a, b, c" in run(*tfdist, "new", "kinds", "--table=t.csv")
    output = run(*tfdist, "train", "kinds/kinds.py", "--config.model.width=32")
    assert "optimizer  keras.optimizers:Adam, learning rate 0.001, constant" in output
    assert json.loads((tmp_path / "runs" / "kinds" / "data.json").read_text())["classes"] == ["a", "b", "c"]
    assert '"accuracy": 1.0' in run(*tfdist, "evaluate", "runs/kinds", "--checkpoint=best").splitlines()[-1]

    (tmp_path / "typed.py").write_text(TYPED)
    mypy = (sys.executable, "-m", "mypy", "--python-executable", python, "--follow-imports=silent", "typed.py")
    found = run(*mypy, code=1)
    assert 'Argument "batch_size" to "Data" has incompatible type "str"; expected "int"' in found
    assert 'Revealed type is "tfdist.cluster.collective_guard.ScriptCluster"' in found
