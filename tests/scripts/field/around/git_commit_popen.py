"""Notes versions and a commit for the run, as many training scripts do."""

import json
import os
import platform
import subprocess
import sys

import keras
import numpy as np
from recording import record


def git_revision():
    try:
        out = subprocess.Popen(["git", "rev-parse", "HEAD"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        text, _ = out.communicate()
        return text.decode().strip() if out.returncode == 0 else "unknown"
    except OSError:
        return "unknown"


def git_status():
    try:
        return subprocess.check_output(["git", "status", "--short"], stderr=subprocess.STDOUT).decode()
    except (subprocess.CalledProcessError, FileNotFoundError):
        return "not a repository"


info = {
    "commit": git_revision(),
    "status": git_status(),
    "python": platform.python_version(),
    "keras": keras.__version__,
    "cwd": os.path.basename(os.getcwd()),
    "echo": os.popen("echo hello").read().strip(),
    "code": subprocess.call([sys.executable, "-c", "import sys; sys.exit(3)"]),
}
with open("environment.json", "w") as f:
    json.dump(info, f, indent=1)
keras.utils.set_random_seed(0)
x = np.random.rand(24, 3).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
loss = model.fit(x, x.sum(1), epochs=2, batch_size=6, shuffle=False).history["loss"]
record(loss=loss, info=json.load(open("environment.json")))
