"""The tools: `python -m tfdist doctor --config=configs/digits.py`, also installed as `tfdist doctor ...`.

`tfdist train` is `python -m tfdist.main`; `tfdist run` and `tfdist launch` are `python -m tfdist.run` and
`python -m tfdist.launch`. Only the module of the named tool is imported; the list needs no TensorFlow.
"""

import importlib
import importlib.metadata
import os
import runpy
import sys

from tfdist.config import closed_streams

# By tool: its module, and its line in the list. The module has `add_flags(parser)`, and `main(args)`, which returns an
# exit code or None.
TOOLS = {
    "predict": (
        "tfdist.tools.saved_runs.predict",
        "Predict files with the model of a run, on all devices and workers.",
    ),
    "inspect": (
        "tfdist.tools.saved_runs.inspection",
        "Show what a run gets wrong: pictures, confusion matrix, classes.",
    ),
    "export": ("tfdist.tools.saved_runs.export", "Write the model of a run as a SavedModel, ONNX, OpenVINO or LiteRT."),
    "runs": ("tfdist.tools.many_runs.runs", "List runs with state, progress and metrics; sort and filter them."),
    "compare": (
        "tfdist.tools.many_runs.compare",
        "Show how runs differ: fields, metrics, code, and the first different step.",
    ),
    "verify": ("tfdist.tools.saved_runs.verify", "Train parts of a finished run again, and compare hashes."),
    "new": ("tfdist.tools.start.new", "Write a config, a network and a README for your own data."),
    "docs": ("tfdist.tools.start.docs_pages", "Print the pages about tfdist."),
    "doctor": ("tfdist.tools.doctor.command", "Check config, workers, data, memory and network before a job."),
    "prepare": ("tfdist.tools.prepare", "Download the data of a config."),
    "batch_size": ("tfdist.tools.batch_size", "Find the largest batch that fits into memory."),
    "models": (
        "tfdist.configs.laboratory.network_table",
        "Compare networks: parameters, memory, GFLOP, time of a step here.",
    ),
    "sweep": (
        "tfdist.tools.many_runs.sweep",
        "Train with many values of fields, here or as a job array.",
    ),
    "scaling": ("tfdist.tools.scaling", "Measure the training time for several numbers of replicas."),
    "trajectories": (
        "tfdist.configs.laboratory.trajectories",
        "Plot the parameters of a linear model during training.",
    ),
    "parallel_mistakes": (
        "tfdist.configs.laboratory.parallel_mistakes",
        "Show the effects of common mistakes in data-parallel training.",
    ),
    "course": (
        "tfdist.configs.laboratory.course",
        "Run an exercise of a course, and compare your answer with its page.",
    ),
    "plot": ("tfdist.tools.pictures.plot", "Draw curves of runs, or scaling studies."),
    "all_reduce": (
        "tfdist.configs.laboratory.all_reduce",
        "Measure all-reduce times; fit latency and bandwidth of a ring.",
    ),
    "local_sgd": (
        "tfdist.configs.laboratory.local_sgd.command",
        "Train with several local steps between averages: local SGD.",
    ),
    "asynchronous": ("tfdist.configs.laboratory.parameter_server.command", "Train asynchronously: parameter servers."),
}
# By command for training: the module that is run, and its line in the list.
TRAINING = {
    "train": ("tfdist.main", "Train or evaluate the model of a config: python -m tfdist.main."),
    "evaluate": ("tfdist.main", "Evaluate a run: tfdist evaluate runs/x [--checkpoint=best]."),
    "run": ("tfdist.run", "Run an unchanged Keras script on all workers: python -m tfdist.run."),
    "launch": ("tfdist.launch.__main__", "Train with several workers on this machine: python -m tfdist.launch."),
}
_BEGIN = (
    "  $ tfdist train digits             trains a small network on images that come with tfdist",
    "  $ tfdist new mine --images=DIR    writes a config for your own data: images, or a table",
    "  $ tfdist run my_script.py         trains with your Keras script, unchanged",
)
_HELP = {"--help", "-help", "--helpfull", "--helpshort", "-h", "-?", "help"}


def main() -> None:
    """Runs the tool that the first argument names, with the other arguments as its flags; exits the process."""
    closed_streams.reopen()
    name, *arguments = sys.argv[1:] or ["--help"]
    try:
        _run_command(name, arguments)
    except KeyboardInterrupt:
        print(f"tfdist {name}: stopped by Ctrl-C.", file=sys.stderr)
        sys.exit(130)  # As shells report SIGINT.


def _run_command(name: str, arguments: list[str]) -> None:
    if name in _HELP:
        with closed_streams.exit_quietly():
            print(overview())
        return
    if name == "--version":
        print(f"tfdist {importlib.metadata.version('tfdist')}")
        return
    if os.getcwd() not in sys.path:  # As `python -m` does, to find the user's modules.
        sys.path.insert(0, os.getcwd())
    commands = [*TRAINING, *TOOLS]
    if name not in commands:
        from tfdist.config import text

        near = text.closest(name, commands, 0.5)
        hint = f"Nearest: {near}. " if near else ""
        sys.exit(f"tfdist: there is no command {name!r}. {hint}The commands: {', '.join(commands)}.")
    arguments += ["--mode=eval"] if name == "evaluate" else []
    sys.argv[1:] = arguments  # absl reads flags from sys.argv.
    if name in TRAINING:
        runpy.run_module(TRAINING[name][0], run_name="__main__", alter_sys=True)
        return
    from tfdist.config import tool_flags

    tool_flags.run(importlib.import_module(TOOLS[name][0]), name)


def overview() -> str:
    """The list of commands, one line each."""
    training, tools = ([f"  {name:<18} {line}" for name, (_, line) in each.items()] for each in (TRAINING, TOOLS))
    return "\n".join(
        [
            *("usage: python -m tfdist COMMAND [flags]", "", "to begin:", *_BEGIN, ""),
            *("training:", *training, "", "tools:", *tools, ""),
            "python -m tfdist COMMAND --help shows the flags of a command.",
        ]
    )


if __name__ == "__main__":
    main()
