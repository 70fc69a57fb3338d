"""The layout of tfdist: which package imports which, where private names are used. Ruff looks for docstrings."""

import ast
import functools
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
# The packages, and which others each may import. zoo is for configs: nothing imports it.
PACKAGES = {
    "configs": set(),
    "config": {"configs"},
    "report": set(),
    "cluster": {"config"},
    "data": {"config", "report"},
    "checkpoint": {"config", "report"},
    "training": {"config", "report", "cluster", "data", "checkpoint"},
    "launch": {"config", "report", "cluster", "checkpoint"},
    "keras_fit": {"config", "report", "cluster", "data", "checkpoint", "training"},
    "tools": {"config", "report", "cluster", "data", "checkpoint", "training", "launch", "configs"},
    "zoo": {"config", "report", "data", "configs"},
    "__main__": {"config", "tools"},
    "main": {"config", "cluster", "training"},
    "run": {"config", "cluster", "keras_fit"},
}
# All that keras_fit may use of training; nothing else imports it.
FACADE = "tfdist.training.api"
# The core neither imports nor names the shell. The defaults of a config name what they refer to; removed, what is gone.
CORE = ("config", "report", "cluster", "data", "checkpoint", "training")
SHELL = re.compile(r"\b(zoo|keras_fit)\b|\btfdist[./](launch|tools)\b")
MAY_NAME_THE_SHELL = {"tfdist.config.schema", "tfdist.config.removed"}
# What a user meets before TensorFlow has to be imported: --help, a wrong config, a missing worker.
WITHOUT_TENSORFLOW = [
    *(
        "config",
        "config.validate",
        "config.load",
        "config.tool_flags",
        "report.files",
        "report.run_info",
        "report.console",
    ),
    *("report.reporter", "training.triggers", "cluster.interruption", "main", "__main__", "checkpoint.directory"),
    *("cluster.discovery.environment", "cluster.control.rendezvous", "cluster.control.heartbeat_monitor"),
    *("cluster.control.watchdog", "checkpoint.workdir_lock"),
    "launch.__main__",
]
# Besides cluster/: launch/ writes the variables of launchers.
DISTRIBUTION_MAY_BE_NAMED = ("tfdist.cluster", "tfdist.launch.local_workers")
# The attributes of a strategy that the textbook loop may use outside cluster/ and COMMUNICATION.
TEXTBOOK = {"scope", "run", "reduce", "experimental_distribute_dataset", "experimental_local_results"}
# The words of tf.distribute that stay in cluster/ and in these modules.
COMMUNICATION = (
    "tfdist.keras_fit.whole_batch.one_replica",
    "tfdist.training.step.collectives",
    "tfdist.training.step.updates.all_reduce",
    "tfdist.training.step.updates.gathered_rows",
)
DISTRIBUTION = {"get_replica_context", "all_reduce", "merge_call", "replica_id_in_sync_group", "extended"}
# What command lines of child processes name, and the list of `tfdist`.
PROGRAMS, TABLE_OF_COMMANDS = {"tfdist.main", "tfdist.run", "tfdist.launch"}, "tfdist.__main__"
LAUNCHERS = re.compile(r"(SLURM|OMPI|PMI|PMIX|PBS)_\w*|TF_CONFIG|CUDA_VISIBLE_DEVICES")
# Private names of TensorFlow and Keras: imports, and attributes with a leading underscore. TensorFlow 2.21 and Keras 3
# have no public replacement for them. A name that is no longer used must go from here: the list can only shrink.
# In brackets an issue of keras-team/keras or tensorflow/tensorflow; without one, none was found in November 2026.
PRIVATE_NAMES = {
    "tfdist.cluster.collective_guard": {"_distribute_strategy": "Model.predict on one worker only"},
    "tfdist.cluster.devices.eager_context": {
        "tensorflow.python.eager.context": "configure_coordination_service: heartbeat and shutdown time-outs",
    },
    "tfdist.cluster.devices.onednn": {
        "tensorflow.python.util._pywrap_util_port": "whether TensorFlow uses oneDNN, by its own rules for processors",
    },
    "tfdist.cluster.distributed_dataset": {
        "tensorflow.python.data.ops.multi_device_iterator_ops": "device datasets have no options",
        "_create_device_dataset": "patched while an iterator is made, for the same reason",
    },
    "tfdist.cluster.mirrored_variables": {
        "tensorflow.python.distribute.values": "MirroredVariable lacks methods that tf.Variable has, such as __float__",
    },
    "tfdist.cluster.several_workers.multi_worker": {
        "tensorflow.python.distribute.collective_all_reduce_strategy": "logical CPUs, for tests (tensorflow#57743)",
        "_initialize_local_devices": "patched while the strategy is made: logical CPU devices, for tests",
    },
    "tfdist.data.autograph": {
        "tensorflow.python.autograph.core.ag_ctx": "AutoGraph for users' functions only",
        "tensorflow.python.autograph.impl.api": "tf_convert, for the same reason",
    },
    "tfdist.keras_fit.adapters.base": {
        "keras.src.trainers.data_adapters.tf_dataset_adapter": "class weights of a dataset as Model.fit applies them",
    },
    "tfdist.data.guard": {
        "keras.src.random.seed_generator": "the state of keras.random without a seed, to see whether a trace draws",
        "tensorflow.python.framework.auto_control_deps_utils": "which ops write a variable, as TensorFlow finds",
        "_flatten_layers": "layers of all depths, whose functions may draw",
        "_watched_variables": "the variables that a function has used while it is traced",
    },
    "tfdist.keras_fit.adapters.dataset_traits": dict.fromkeys(
        ("_deterministic", "_functions", "_inputs", "_seed", "_seed2"), "a pipeline cannot be inspected by public names"
    ),
    "tfdist.keras_fit.adapters.make_adapter": {
        "keras.src.trainers.data_adapters.array_slicing": "arrays and validation_split as in Model.fit",
        **dict.fromkeys(
            (
                "keras.src.trainers.data_adapters",
                *(f"keras.src.trainers.data_adapters.{name}" for name in ("array_data_adapter", "data_adapter_utils")),
            ),
            "arrays as Keras checks and packs them; grain and torch: Keras makes their batches",
        ),
    },
    "tfdist.keras_fit.adapters.tf_dataset": {
        "keras.src.trainers.data_adapters.data_adapter_utils": "the element spec of batches of varying shapes",
    },
    "tfdist.keras_fit.adapters.pipelines": dict.fromkeys(
        ("_batch_size", "_count", "_drop_remainder"),
        "moves maps behind batch(); without one of these it warns and shards batches",
    ),
    "tfdist.keras_fit.compiled_model": dict.fromkeys(
        ("_compile_config", "_compile_loss", "_compile_metrics", "_user_loss_weights"),
        "the losses and metrics that compile() made and was given, and their weights (tensorflow#38269)",
    ),
    "tfdist.keras_fit.predict": {
        "keras.src.backend.tensorflow.trainer": "outputs of batches joined as in Model.predict",
    },
    "tfdist.keras_fit.own_step.own_setup": {
        "_aggregation": "each replica holds a metric's value for the whole batch, and not its part of a sum",
    },
    "tfdist.keras_fit.patches": {
        "_all_reduce_sum_gradients": "replaced: a step's gradients are those of the global batch",
        "tensorflow.python.ops.cond": "cond, replaced: weights are updated in a branch (keras#20582)",
        "_overwrite_model_variables_with_average_value": "replaced, for the same reason",
    },
    "tfdist.keras_fit.script.ending": {"_shutdown": "Python's: how threads end before what atexit calls"},
    "tfdist.keras_fit.whole_batch.global_view": {
        "_keras_logits": "Keras computes losses of a gathered softmax from its gathered logits",
    },
    "tfdist.keras_fit.whole_batch.own_rows": {
        "keras.src.losses.loss": "Keras divides a loss by the examples of one replica (keras#19891)",
    },
    "tfdist.keras_fit.whole_batch.rows": {
        "keras.src.backend.common.masking": "Keras' masks on predictions are gathered with them",
    },
    "tfdist.keras_fit.whole_batch.attributes": {
        "_losses": "the replicas of a process trace a layer in turn, and each has losses of add_loss of its own",
    },
    "tfdist.training.features.callback_runner": {"_should_trace": "whether a TensorBoard callback acts on batches"},
    "tfdist.training.step.layers.model_layers": {
        "_flatten_layers": "layers of all depths, those in lists and dicts included",
        "_non_trainable_variables": "variables made non-trainable, not those of frozen layers",
    },
    "tfdist.training.step.layers.remat_scopes": {"_remat_mode": "the scope in which a layer was made"},
    "tfdist.training.step.optimizer": {
        "_all_reduce_sum_gradients": "replaced: gradients are summed before clipping (tensorflow#33929)",
        "_learning_rate": "the schedule, by the notes of TensorFlow 2.11; Optimizer.learning_rate is its value",
        "_model_variables_moving_average": "averages start from the weights, also if the first step is skipped",
    },
    "tfdist.training.step.updates.fused_updates": {
        "_apply_weight_decay": "replaced: Keras computes the learning rate for each weight that decays",
        "_get_variable_index": "the slots of a variable",
        "_momentums": "slots of Adam",
        "_use_weight_decay": "whether a weight decays",
        "_velocities": "slots of Adam",
    },
    "tfdist.training.step.random_numbers.seed_generators": {
        "_seed_generators": "a layer's seed generators, whose `next` is replaced (keras#20611)",
    },
    "tfdist.training.step.random_numbers.stateful_random": {
        "keras.src.random.seed_generator": "keras.random without a seed makes a variable in the step (keras#20611)",
        "tensorflow.python.ops.gen_random_ops": "tf.random's ops become stateless in a step (tensorflow#58433)",
    },
    "tfdist.zoo.normalization": {"_flatten_layers": "layers of all depths"},
}


def modules():
    """Returns dotted name -> source of every module of the package."""
    found = {}
    for path in sorted((ROOT / "tfdist").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


def shipped():
    """As `modules`, for configs/, which is `tfdist.configs`: it is in the wheel, and no part of the package."""
    paths = sorted((ROOT / "configs").rglob("*.py"))
    return {f"tfdist.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}": path.read_text() for path in paths}


@functools.cache
def parsed(source):
    """The syntax tree of a module; several tests walk through those of all modules."""
    return ast.parse(source)


def last_name(node):
    """`b` for `b` and `a.b`; "" for other expressions."""
    return getattr(node, "attr", getattr(node, "id", ""))


def imported(source, known):
    """Yields (line, module, whether at the top level) of every import; of ours, the modules and not their contents."""
    tree = parsed(source)
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


def package_of(module):
    """`cluster` for `tfdist.cluster.strategy`; None for `tfdist` itself."""
    return module.split(".")[1] if "." in module else None


def order_problems(sources):
    """Lists imports that a package may not make, and modules that belong to no package."""
    problems = []
    for module, source in sources.items():
        mine = package_of(module)
        if mine not in (None, *PACKAGES):
            problems.append(f"{module} is in no package: give it its place in PACKAGES")
            continue
        for line, other, _ in imported(source, sources):
            if other.split(".")[0] != "tfdist" or other == module or mine is None:
                continue
            theirs = package_of(other)
            allowed = theirs == mine or theirs in PACKAGES[mine]
            if not allowed:
                problems.append(f"{module}:{line} imports {other}")
    return problems


def facade_problems(sources):
    """Lists what keras_fit imports of training besides FACADE, and what else imports FACADE."""
    return [
        f"{module}:{line} imports {other}"
        for module, source in sources.items()
        for line, other, _ in imported(source, sources)
        if (other == FACADE) != (package_of(module) == "keras_fit" and package_of(other) == "training")
    ]


def shell_problems(sources):
    """Lists lines of the core, comments and messages included, that name a package of the shell; see SHELL."""
    return [
        f"{module}:{number} names {found[0]}"
        for module, source in sources.items()
        if package_of(module) in CORE and module not in MAY_NAME_THE_SHELL
        for number, line in enumerate(source.splitlines(), 1)
        for found in SHELL.finditer(line)
    ]


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


def early_imports(sources):
    """Lists imports of TensorFlow Datasets and ArrayRecord, which are optional, outside of functions."""
    return [
        f"{module}:{line} imports {other} outside a function"
        for module, source in sources.items()
        for line, other, top in imported(source, sources)
        if top and other.split(".")[0] in ("tensorflow_datasets", "array_record")
    ]


def distribution_problems(module, source):
    """Lists words of tf.distribute and launchers' variables where they do not belong; see DISTRIBUTION_MAY_BE_NAMED."""
    tree, problems = parsed(source), []
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and f"{node.module}"[:6] == "tfdist"]
    ours = {alias.asname or alias.name for node in imports for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and LAUNCHERS.fullmatch(node.value):
            problems.append((node.lineno, node.value))
        if module in COMMUNICATION:
            continue
        if isinstance(node, ast.ImportFrom) and "distribute" in f"{node.module}".split("."):
            problems.append((node.lineno, node.module))
        if isinstance(node, ast.Attribute):
            of_strategy = last_name(node.value) == "strategy" and node.attr not in TEXTBOOK
            of_module = node.attr == "distribute" and last_name(node.value) in ("tf", "tensorflow")
            if (of_strategy or of_module or node.attr in DISTRIBUTION) and ast.unparse(node.value) not in ours:
                problems.append((node.lineno, ast.unparse(node)))
    return [f"{module}:{line} says {word}" for line, word in sorted(set(problems))]


def named_modules(sources):
    """Lists strings that name a module of ours, or something in one: imports must be imports.

    Users' configs name functions of zoo by dotted path. PROGRAMS are started with `python -m`, and docstrings may name
    anything.
    """
    problems = []
    for module, source in sources.items():
        if module == TABLE_OF_COMMANDS:
            continue
        for node in ast.walk(parsed(source)):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            named = node.value.partition(":")[0]
            if "." in named and named in sources and named not in PROGRAMS and package_of(named) != "zoo":
                problems.append(f"{module}:{node.lineno} names {node.value}")
    return problems


def private_names(source):
    """Returns imported private modules of TensorFlow and Keras, and private attributes of other objects."""
    tree = parsed(source)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    attributes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]|__internal__", node.attr, re.I)
    ]
    own |= {node.attr for node in attributes if ast.unparse(node.value) in ("self", "cls")} | {"_exit"}
    found = {node.attr for node in attributes} - own
    for node in ast.walk(tree):
        by_name = ("replace_attribute", "replace_until_end", "patch", "getattr", "hasattr", "setattr")
        is_call = isinstance(node, ast.Call) and last_name(node.func) in by_name and len(node.args) > 1
        # (owner, name, replacement) in a table of replacements.
        is_row = isinstance(node, ast.Tuple) and len(node.elts) == 3 and isinstance(node.elts[0], ast.Attribute)
        if is_call or is_row:
            name = node.args[1] if is_call else node.elts[1]
            private = isinstance(name, ast.Constant) and re.match(r"_[a-z]", f"{name.value}") and name.value not in own
            found |= {name.value} if private else set()
        if isinstance(node, ast.ImportFrom) and re.match(r"tensorflow\.(python|core)|keras\.src", f"{node.module}"):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def bound_names(source):
    """Returns the names that the top level of a module binds, also within `if`, `try`, `with` and `for`."""
    found, nodes = set(), list(parsed(source).body)
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        else:
            nodes += ast.iter_child_nodes(node)
    return found


def missing_names(sources):
    """Lists what modules use of other modules of ours, `module.name`, that does not exist there."""
    problems = []
    for name, source in sources.items():
        nodes = list(ast.walk(parsed(source)))
        ours = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if f"{node.module}.{alias.name}" in sources
        }
        own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        for node in nodes:
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in ours.keys() - own
            ):
                module = ours[node.value.id]
                packages = {each.rpartition(".")[2] for each in sources if each.rpartition(".")[0] == module}
                if not node.attr.startswith("__") and node.attr not in bound_names(sources[module]) | packages:
                    problems.append(f"{name}:{node.lineno} {module} has no {node.attr}")
    return problems


def arguments_without_type(name, source):
    """Lists arguments of public functions of a module that have no type."""
    return [
        f"{name}:{node.lineno} {node.name}: {argument.arg} has no type"
        for node in parsed(source).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if not argument.annotation
    ]


def test_modules_import_only_what_their_wing_may():
    sources = modules()
    assert order_problems(sources) + cycles(sources) == []


def test_no_string_names_a_module_of_ours():
    assert named_modules(modules()) == []


def test_keras_fit_uses_training_by_its_facade_only():
    assert facade_problems(modules()) == []


def test_what_a_module_uses_of_another_one_exists():
    assert missing_names(modules() | shipped()) == []


def test_core_does_not_import_or_name_the_shell():
    shell = PACKAGES.keys() - {*CORE, "configs", "__main__", "main", "run"}
    assert shell == {"launch", "keras_fit", "tools", "zoo"}
    assert [name for name in CORE if PACKAGES[name] & shell] == []
    assert shell_problems(modules()) == []


def test_what_is_optional_is_imported_where_it_is_used():
    assert early_imports(modules()) == []


def test_importing_what_must_do_without_tensorflow_does_not_import_it():
    """One process imports all, one after another, and names the first that brings TensorFlow with it."""
    code = (
        "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
        "    if {'tensorflow', 'keras'} & sys.modules.keys():\n        sys.exit(name)\n"
    )
    command = [sys.executable, "-c", code, *(f"tfdist.{name}" for name in WITHOUT_TENSORFLOW)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_distribution_is_named_in_two_places():
    problems = []
    for module, source in modules().items():
        if not module.startswith(DISTRIBUTION_MAY_BE_NAMED):
            problems += distribution_problems(module, source)
    assert problems == []


def test_arguments_of_public_functions_have_types():
    sources = modules() | shipped()
    assert [one for module, source in sources.items() for one in arguments_without_type(module, source)] == []


def test_private_names_of_tensorflow_and_keras_are_those_of_the_list():
    found = {module: private_names(source) for module, source in {**modules(), **shipped()}.items()}
    assert {module: names for module, names in found.items() if names} == {
        module: set(names) for module, names in PRIVATE_NAMES.items()
    }


def test_each_planted_fault_has_one_place():
    pytest.importorskip("tomllib", reason="Python 3.11")
    faults = runpy.run_path(str(ROOT / "tests" / "planted" / "__main__.py"))["read_faults"]()
    assert len(faults) >= 60
