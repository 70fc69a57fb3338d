"""A decoder-only transformer (0.8 million parameters) that learns to write like a text, character by character.

    python -m tfdist.main --config=configs/char_gpt.py
    python -m tfdist.main --config=configs/char_gpt.py:FILE

The first command trains on Python's help texts (0.7 MB, part of Python), the second on any text in UTF-8. The sizes are
nanoGPT's for CPUs: 4 layers of width 128, 64 characters, batches of 12, 2,000 steps. The evaluation uses the last tenth
of the text, at most 1,024 pieces of it. After each evaluation the model writes some lines.
"""

import importlib.util
import os

from tfdist import config as c

LENGTH = 64


def get_config(path: str | None = None) -> c.Config:
    """Returns the configuration of the run for the text in `path`; None: Python's help texts.

    Raises:
        ValueError: there is no such file, or it is not UTF-8.
    """
    path = path or importlib.util.find_spec("pydoc_data.topics").origin
    if not os.path.isfile(path):
        raise ValueError(f"--config=configs/char_gpt.py:FILE needs a text file. Received: {path!r}")
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"--config=configs/char_gpt.py:{path} is not encoded in UTF-8: {error}. Convert it.") from None
    characters, tests = "".join(sorted(set(text))), round(0.1 * (len(text) // LENGTH))
    network = "tfdist.configs.networks.char_gpt"
    return c.Config(
        model={"target": f"{network}:network", "num_classes": len(characters), "length": LENGTH},
        data=c.Data(
            source={"target": "tfdist.configs.networks.char_gpt:text", "path": path, "length": LENGTH},
            prepare={"target": "tfdist.zoo.prepare:identity"},
            evaluation_split="test[:1024]" if tests > 1024 else "test",
            batch_size=12,
            evaluation_batch_size=96,
        ),
        objective={
            "target": "tfdist.zoo.objectives:keras_loss",
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["sparse_categorical_accuracy"],
            "arguments": {"from_logits": True},
            "inputs": "inputs",
            "labels": "targets",
        },
        optimizer={"target": f"{network}:adamw", "weight_decay": 0.1, "beta_2": 0.99, "epsilon": 1e-8},
        learning_rate=c.LearningRate(
            peak=1e-3, schedule={"target": "tfdist.zoo.schedules:cosine", "final": 0.1}, warmup_epochs=0.02
        ),
        # XLA also on CPUs: it merges the many short operations of such a small network (docs/speed.md).
        train=c.Train(steps=2000, clip_norm=1.0, xla=True),
        evaluation=c.Evaluation(every=c.Every(steps=500)),
        checkpoint=c.Checkpoint(every=c.Every(steps=500)),
        callbacks=[{"target": f"{network}:Sample", "characters": characters, "length": LENGTH}],
    )
