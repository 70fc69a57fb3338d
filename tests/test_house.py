"""The order of the house: who imports whom, where distribution is named, how long things may be. Read, not run."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
# The wings, and which others each may import. zoo is for configs: no wing imports it.
WINGS = {
    "config": set(),
    "report": {"config"},
    "cluster": {"config"},
    "data": {"config", "report"},
    "checkpoint": {"config", "report"},
    "training": {"config", "report", "cluster", "data", "checkpoint"},
    "launch": {"config", "report", "cluster", "checkpoint"},
    "keras_fit": {"config", "report", "cluster", "data", "checkpoint", "training"},
    "tools": {"config", "report", "cluster", "data", "checkpoint", "training", "launch"},
    "zoo": {"config", "data"},
    "__main__": {"config", "tools"},
    "main": {"config", "cluster", "training"},
}
# What a user meets before TensorFlow has to be imported: --help, a wrong config, a missing worker.
WITHOUT_TENSORFLOW = [
    *("config", "config.validate", "config.flags", "report.files", "report.run_info", "report.console"),
    *("report.reporter", "training.triggers", "cluster.interruption", "main", "__main__", "checkpoint.directory"),
    *("cluster.discovery.environment", "cluster.rendezvous.preflight", "cluster.liveness.heartbeat", "cluster.malloc"),
]
# Besides cluster/: launch/ writes launchers' variables, and parameter servers have a strategy of their own.
DISTRIBUTION_MAY_BE_NAMED = (
    *("tfdist.cluster", "tfdist.launch.local_workers"),
    *("tfdist.tools.parameter_server.tasks", "tfdist.tools.parameter_server.local_tasks"),
)
TENSORFLOW = {"tensorflow", "keras", "tensorflow_datasets"}
# The words of the textbook loop that may be said of a strategy outside cluster/ and training/step/gradients.py.
TEXTBOOK = {"scope", "run", "reduce", "experimental_distribute_dataset", "experimental_local_results"}
# The words of tf.distribute that stay in cluster/ and training/step/gradients.py.
DISTRIBUTION = {"get_replica_context", "all_reduce", "merge_call", "replica_id_in_sync_group", "extended"}
LAUNCHERS = re.compile(r"(SLURM|OMPI|PMI|PMIX|PBS)_\w*|TF_CONFIG|CUDA_VISIBLE_DEVICES")
LONGEST_FUNCTION, LONGEST_FILE = 80, 400
# Names of files that collect what belongs nowhere.
DRAWERS = {"utils", "util", "helpers", "misc", "common"}


def modules():
    """Returns dotted name -> source of every module of the package."""
    found = {}
    for path in sorted((ROOT / "tfdist").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


def imported(source, known):
    """Yields (line, module, whether at the top level) of every import; of ours, the modules and not their contents."""
    tree = ast.parse(source)
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known or not name.startswith("tfdist") else node.module for name in names]
        else:
            continue
        yield from ((node.lineno, name, id(node) in top) for name in names)


def room(module):
    """`cluster` for `tfdist.cluster.strategy`; None for the front door, `tfdist` itself."""
    return module.split(".")[1] if "." in module else None


def order_problems(sources):
    """Lists imports that a wing may not make, and modules that belong to no wing."""
    problems = []
    for module, source in sources.items():
        mine = room(module)
        if mine not in (None, *WINGS):
            problems.append(f"{module} is in no wing: give it its place in WINGS")
            continue
        for line, other, _ in imported(source, sources):
            if other.split(".")[0] != "tfdist" or other == module or mine is None:
                continue
            theirs = room(other)
            allowed = theirs == mine or theirs in WINGS[mine]
            if not allowed:
                problems.append(f"{module}:{line} imports {other}")
    return problems


def cycles(sources):
    """Lists modules that import themselves by way of others, at whatever level."""
    graph = {module: {other for _, other, _ in imported(source, sources)} for module, source in sources.items()}
    problems = []
    for start in graph:
        seen, waiting = set(), [start]
        while waiting:
            for other in graph.get(waiting.pop(), set()) & graph.keys() - seen:
                seen.add(other)
                waiting.append(other)
        if start in seen and start != "tfdist":
            problems.append(f"{start} imports itself by way of others")
    return problems


def tensorflow_problems(sources):
    """Lists where TensorFlow is imported by what must do without, and where its data sets are imported early."""
    problems = []
    for module, source in sources.items():
        for line, other, top in imported(source, sources):
            package = other.split(".")[0]
            if module.removeprefix("tfdist.") in WITHOUT_TENSORFLOW and package in TENSORFLOW:
                problems.append(f"{module}:{line} imports {other}")
            if package in ("tensorflow_datasets", "array_record") and top:
                problems.append(f"{module}:{line} imports {other} outside a function")
    return problems


def distribution_problems(module, source):
    """Lists words of tf.distribute and launchers' variables where they do not belong; see DISTRIBUTION_MAY_BE_NAMED."""
    tree, problems = ast.parse(source), []
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and f"{node.module}"[:6] == "tfdist"]
    ours = {alias.asname or alias.name for node in imports for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and LAUNCHERS.fullmatch(node.value):
            problems.append((node.lineno, node.value))
        if module == "tfdist.training.step.gradients":
            continue
        if isinstance(node, ast.ImportFrom) and "distribute" in f"{node.module}".split("."):
            problems.append((node.lineno, node.module))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ours:
            of_strategy = ast.unparse(node.value).split(".")[-1] == "strategy" and node.attr not in TEXTBOOK
            if (
                of_strategy
                or node.attr in DISTRIBUTION
                or ast.unparse(node) in ("tf.distribute", "tensorflow.distribute")
            ):
                problems.append((node.lineno, ast.unparse(node)))
    return [f"{module}:{line} says {word}" for line, word in sorted(set(problems))]


def size_problems(name, source):
    """Lists functions and files that are too long."""
    problems = [f"{name}: {source.count(chr(10))} lines"] if source.count("\n") >= LONGEST_FILE else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            documentation = ast.get_docstring(node, clean=False)
            lines = node.end_lineno - node.lineno + 1 - (documentation.count("\n") + 1 if documentation else 0)
            if lines >= LONGEST_FUNCTION:
                problems.append(f"{name}:{node.lineno} {node.name}: {lines} lines")
    return problems


def public_problems(name, source):
    """Lists public functions and classes of a module without a docstring, and arguments without a type."""
    problems = []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if ast.get_docstring(node) is None:
            problems.append(f"{name}:{node.lineno} {node.name} has no docstring")
        if isinstance(node, ast.FunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            problems += [
                f"{name}:{node.lineno} {node.name}: {a.arg} has no type" for a in arguments if not a.annotation
            ]
    return problems


def test_modules_import_only_what_their_wing_may():
    sources = modules()
    assert order_problems(sources) + cycles(sources) == []


def test_the_order_can_be_broken():
    sources = {
        "tfdist": "from tfdist.keras_fit.api import fit\n",
        "tfdist.config": "def late():\n    from tfdist.training import loop\n",
        "tfdist.training.loop": "import tfdist\nfrom tfdist.config import flags\nfrom tfdist.training import run\n",
        "tfdist.training.run": "from tfdist.zoo import models\n",
        "tfdist.config.flags": "",
        "tfdist.zoo.models": "import tfdist.config\nfrom tfdist.training import run\n",
        "tfdist.zoo.stateless_random": "import math\n",
        "tfdist.data.order": "from tfdist.data import stream\n",
        "tfdist.data.stream": "from tfdist.data.order import order\n",
        "tfdist.attic": "",
    }
    assert order_problems(sources) == [
        "tfdist.config:2 imports tfdist.training.loop",
        "tfdist.training.loop:1 imports tfdist",
        "tfdist.training.run:1 imports tfdist.zoo.models",
        "tfdist.zoo.models:2 imports tfdist.training.run",
        "tfdist.attic is in no wing: give it its place in WINGS",
    ]
    assert [problem.split()[0] for problem in cycles(sources)] == [
        *("tfdist.config", "tfdist.training.loop", "tfdist.training.run", "tfdist.zoo.models"),
        *("tfdist.data.order", "tfdist.data.stream"),
    ]


def test_tensorflow_is_imported_only_where_it_is_needed():
    assert tensorflow_problems(modules()) == []
    sample = {"tfdist.config": "def f():\n    import keras\n", "tfdist.zoo.x": "import tensorflow_datasets as tfds\n"}
    assert tensorflow_problems(sample) == [
        "tfdist.config:2 imports keras",
        "tfdist.zoo.x:1 imports tensorflow_datasets outside a function",
    ]


@pytest.mark.parametrize("name", WITHOUT_TENSORFLOW)
def test_importing_what_must_do_without_tensorflow_does_not_import_it(name):
    code = f"import sys, tfdist.{name}; sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0


def test_distribution_is_named_in_two_places():
    problems = []
    for module, source in modules().items():
        if not module.startswith(DISTRIBUTION_MAY_BE_NAMED):
            problems += distribution_problems(module, source)
    assert problems == []


def test_distribution_elsewhere_is_noticed():
    source = """
from tensorflow.python.distribute import values
def f(self, strategy):
    "SLURM_JOB_ID decides"
    tf.distribute.get_strategy()
    with self.strategy.scope():
        strategy.run(strategy.num_replicas_in_sync)
    return os.environ["SLURM_JOB_ID"], os.environ.get("TF_CONFIG")
"""
    assert distribution_problems("tfdist.training.step.train_step", source) == [
        "tfdist.training.step.train_step:2 says tensorflow.python.distribute",
        "tfdist.training.step.train_step:5 says tf.distribute",
        "tfdist.training.step.train_step:7 says strategy.num_replicas_in_sync",
        "tfdist.training.step.train_step:8 says SLURM_JOB_ID",
        "tfdist.training.step.train_step:8 says TF_CONFIG",
    ]
    assert len(distribution_problems("tfdist.training.step.gradients", source)) == 2
    assert distribution_problems("tfdist.x", "from tfdist.cluster import strategy\nstrategy.connect()\n") == []


def test_nothing_is_too_long_and_nothing_public_is_undocumented():
    problems = []
    for module, source in modules().items():
        problems += size_problems(module, source) + public_problems(module, source)
    assert problems == []


def test_long_and_undocumented_things_are_noticed():
    source = "def f(a, *, b: int):\n" + "    pass\n" * LONGEST_FILE
    assert size_problems("x", source) == ["x: 401 lines", "x:1 f: 401 lines"]
    assert public_problems("x", source) == ["x:1 f has no docstring", "x:1 f: a has no type"]
    documented = 'def f(a: int):\n    """' + "words\n" * LONGEST_FUNCTION + '"""\n'
    assert size_problems("x", documented) == [] and public_problems("x", documented) == []


def test_there_is_no_drawer_and_nothing_left_to_do():
    words = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")))
    folders = [ROOT / name for name in ("tfdist", "tests", "configs", "docs", "launch", "benchmarks")]
    files = [path for folder in folders if folder.is_dir() for path in folder.rglob("*") if path.is_file()]
    texts = [path for path in files if path.suffix in (".py", ".md", ".sh", ".sbatch")] + [ROOT / "pyproject.toml"]
    assert len(texts) > 20
    assert [str(path) for path in files if path.stem in DRAWERS] == []
    assert [str(path) for path in texts if words.search(path.read_text())] == []
    assert words.search("# " + "TO" + "DO: later")
