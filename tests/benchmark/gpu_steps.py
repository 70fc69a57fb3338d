"""The step of one GPU, beside Keras' `fit`, the textbook loop and PyTorch: `python -m tests.benchmark.gpu_steps`.

Each table has one workload in float32 (with TF32, which both frameworks use for convolutions by default) and bfloat16.
Keras' `fit` and tfdist compile by XLA on a GPU by default; PyTorch has `torch.compile`. PyTorch keeps all
images in the GPU's memory and augments them there. All take turns in one run, each in its own process, on GPU 0.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from absl import app, flags

from tests.benchmark import messages, rounds, sections, workloads
from tfdist.cluster.devices import host_gpus
from tfdist.launch import processes

# Ratios are to this participant.
REFERENCE = "tfdist float32"
_BFLOAT16 = {"train.precision": "bfloat16"}
_RESNET50 = {"target": "tfdist.zoo.models:application", "name": "ResNet50V2", "num_classes": 10}
# name -> a workload of the benchmark, and what is changed of it: batches that fill a GPU.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", {}),
    "resnet20": ("resnet20", {"batch": 128}),
    "resnet50v2": (
        "resnet50v2",
        {
            "title": "ResNet50V2 at 224x224",
            "model": _RESNET50 | {"input_shape": (224, 224, 3)},
            "shape": (224, 224, 3),
            "examples": 2_560,
            "batch": 128,
        },
    ),
}


def jobs(case: str) -> dict[str, dict[str, Any]]:
    """The participants of a table, by name, with their jobs."""
    name, changes = CASES[case]

    def job(kind: str, overrides: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        made = sections.make_job(kind, workload=name, overrides=overrides or {}, **more)
        return made | {"changes": changes, "gpus": True, "environment": {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}}

    found = {"floor, fused, looped": job("looped_floor"), "the same, bfloat16": job("looped_floor", _BFLOAT16)}
    found["textbook"] = job("textbook")
    for words, overrides in (("float32", {}), ("bfloat16", _BFLOAT16)):
        found[f"Keras fit {words}"] = job("keras_fit", overrides, stride=1, xla=True)
        if not sections.pytorch_problem():
            half = words == "bfloat16"
            found[f"PyTorch {words}"] = job("ddp", bfloat16=half)
            found[f"PyTorch {words} compiled"] = job("ddp", bfloat16=half, compiled=True)
        found[f"tfdist {words}"] = job("tfdist", overrides)
        found[f"tfdist {words} without XLA"] = job("tfdist", overrides | {"train.xla": False})
    return found


def measure(case: str, folder: Path, *, seconds: float, turns: int) -> sections.Rows:
    """The rows of one table; see `jobs`."""
    participants = jobs(case)
    workload = workloads.of_job(participants[REFERENCE])
    workloads.write_data(workload, folder)
    with rounds.start(participants, folder, pin=False) as started:
        compiled = [one for one in started if _is_compiled(participants[one.name])]
        for one in compiled:  # Compilers need a core for minutes: they run side by side, before anything is measured.
            one.request("step", 1)
        for one in compiled:
            one.receive()
        results = rounds.take_turns(started, "step", seconds=seconds, rounds=turns)
    return sections.rows("gpu", f"{workload.title}, batch {workload.batch}", results, REFERENCE)


def _is_compiled(job: dict[str, Any]) -> bool:
    return bool(
        job.get("xla") or job.get("compiled") or (job["kind"] == "tfdist" and job["overrides"].get("train.xla", True))
    )


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_list("cases", list(CASES), f"Any of {', '.join(CASES)}.")
    flags.DEFINE_float("seconds", 1.0, "Length of a turn.", lower_bound=0.01)
    flags.DEFINE_integer("rounds", 5, "Number of turns of each participant.", lower_bound=1)


def main(argv: list[str]) -> None:
    """Runs the benchmark after its flags are parsed; an error of the user ends it with one message."""
    values = flags.FLAGS
    messages.check_names("cases", values.cases, CASES)
    gpus = host_gpus.query()
    if not gpus:
        sys.exit("tests.benchmark.gpu_steps: no GPU: NVML lists none.")
    print(f"{gpus[0]}", flush=True)
    with messages.one_message("tests.benchmark.gpu_steps"), processes.cleanup_on_sigterm():
        for case in values.cases:
            with tempfile.TemporaryDirectory(prefix="tfdist-benchmark-") as folder:
                sections.show(measure(case, Path(folder), seconds=values.seconds, turns=values.rounds))


if __name__ == "__main__":
    define_flags()
    app.run(main)
