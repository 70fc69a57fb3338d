"""The tools: `python -m tfdist doctor --config=configs/digits.py`, also installed as `tfdist doctor ...`.

Training is `python -m tfdist.main`, or `python -m tfdist.launch` for several workers on one machine. Imports only the
module of the named tool; the list needs no TensorFlow.
"""

import difflib
import importlib
import sys

# Tool -> (its module, which has define_flags() and main(argv); its line in the list).
TOOLS = {
    "doctor": ("tfdist.tools.doctor", "Check config, workers, data, memory and network before a job."),
    "prepare": ("tfdist.tools.prepare_data", "Download and prepare the data, for example on a login node."),
    "batch_size": ("tfdist.tools.batch_size", "Find the largest batch that fits into memory."),
    "scaling": ("tfdist.tools.scaling", "Measure the training time for several numbers of replicas."),
    "trajectories": ("tfdist.tools.trajectories", "Plot the parameters of a linear model during training."),
    "all_reduce": ("tfdist.tools.all_reduce", "Measure all-reduce times and predict the step time of more workers."),
    "benchmark": ("tfdist.tools.benchmark.command", "Compare tfdist with a minimal loop, Keras fit and PyTorch DDP."),
    "asynchronous": ("tfdist.tools.parameter_server.command", "Train asynchronously with parameter servers."),
}
_HELP = {"--help", "-help", "--helpshort", "-helpshort", "-h", "-?"}


def main() -> None:
    """Runs the tool that the first argument names, with the other arguments as its flags; exits the process."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in _HELP:
        print(overview())
        return
    if name not in TOOLS:
        nearest = max(TOOLS, key=lambda tool: difflib.SequenceMatcher(None, name, tool).ratio())
        sys.exit(
            f"tfdist: there is no tool {name!r}. Nearest: {nearest}. The tools: {', '.join(TOOLS)}. "
            "Training: python -m tfdist.main --config=..."
        )
    from absl import app, flags

    from tfdist.config import flags as config_flags

    sys.argv[1:] = arguments  # absl and ml_collections read flags from sys.argv.
    tool = importlib.import_module(TOOLS[name][0])
    tool.define_flags()
    if _HELP & set(arguments):
        print(f"{tool.__doc__}\nThe flags of tfdist {name}:{flags.FLAGS.module_help(tool)}")
        return
    parser = config_flags.parse if "config" in flags.FLAGS else app.parse_flags_with_usage
    app.run(tool.main, flags_parser=parser)


def overview() -> str:
    """The list of tools, one line each."""
    lines = [f"  {name:<13} {line}" for name, (_, line) in TOOLS.items()]
    return "\n".join(
        [
            *("usage: python -m tfdist TOOL [flags]", ""),
            *lines,
            *("", "python -m tfdist TOOL --help shows the flags of a tool."),
            "Training: python -m tfdist.main; several workers on one machine: python -m tfdist.launch.",
        ]
    )


if __name__ == "__main__":
    main()
