"""The config and the flags that override it: every documented error, by its message."""

import dataclasses
import importlib
import pathlib
import re
import subprocess
import sys

import ml_collections
import pytest
from parameters import slow_except

from tfdist import config
from tfdist.config import config_dict, diff, field_help, schema, specs, tool_flags, validate
from tfdist.training import features

LAB = """
def losses(model, batch, *, training, gamma=1.0):
    return (model, batch, training, gamma)

def scale(factor, offset=0):
    return factor * 10 + offset

def anything(**kwargs):
    return kwargs

class Family:
    @staticmethod
    def member(width):
        return width

CONSTANT = 3
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    (tmp_path / "my_lab_of_tests.py").write_text(LAB)
    (tmp_path / "my_broken_lab.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield "my_lab_of_tests"
    sys.modules.pop("my_lab_of_tests", None)


def make(**changes):
    return config.Config(**{"model": {"target": "a:b"}, "train": config.Train(epochs=1)} | changes)


def test_build_calls_the_target_with_the_other_items(lab):
    spec = {"target": f"{lab}:scale", "offset": 2}
    assert specs.build(spec, 4, field="config.model") == 42
    assert specs.build({"target": f"{lab}:scale"}, field="config.model", factor=5) == 50
    assert specs.build({"target": f"{lab}:Family.member", "width": 7}, field="config.model") == 7
    assert specs.build({"target": f"{lab}:anything", "x": 1}, field="config.model", y=2) == {"x": 1, "y": 2}
    assert spec == {"target": f"{lab}:scale", "offset": 2}


def test_partial_calls_later_with_the_arguments_of_both(lab):
    spec = {"target": f"{lab}:losses", "gamma": 2.0}
    call = specs.partial(spec, field="config.objective", positional=2, training=True)
    assert call("model", "batch", training=False) == ("model", "batch", False, 2.0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, r"config\.f\.target must name a function as \"package\.module:function\"\. Received: None"),
        ({"target": "no_colon"}, r"config\.f\.target must name a function.*Received: 'no_colon'"),
        ({"target": "a:b:c"}, r"config\.f\.target must name a function.*Received: 'a:b:c'"),
        ({"target": 3}, r"config\.f\.target must name a function.*Received: 3"),
        ({"target": "no_such_lab:f"}, r"config\.f\.target='no_such_lab:f': there is no module 'no_such_lab'.*working"),
        ({"target": "os.no_such:f"}, r"config\.f\.target='os\.no_such:f': there is no module 'os\.no_such'"),
        ({"target": "{lab}:scael"}, r"config\.f\.target='.*:scael': .* has no 'scael'\. Did you mean 'scale'\?"),
        ({"target": "{lab}:Family.membr"}, r"has no 'membr'\. Did you mean 'member'\?"),
        (
            {"target": "tfdist.zoo.objectives:classifier"},
            r"config\.f\.target='.*' is a module, and must be a function\. Did you mean 'classification'\?",
        ),
        ({"target": "{lab}:CONSTANT"}, r"config\.f\.target='.*:CONSTANT' is not callable: 3"),
        ({"target": "{lab}:scale", "ofset": 1}, r"config\.f\.ofset: .* takes no argument 'ofset'.*mean 'offset'\?"),
        ({"target": "{lab}:scale", "xyz": 1}, r"takes no argument 'xyz'\. It has: factor, offset\."),
        ({"target": "{lab}:scale"}, r"config\.f: .*:scale cannot be called with these arguments: missing .* 'factor'"),
    ],
)
def test_a_spec_that_cannot_be_built_says_why(lab, spec, message):
    spec = {key: value.format(lab=lab) if isinstance(value, str) else value for key, value in spec.items()}
    with pytest.raises(ValueError, match=message):
        specs.build(spec, field="config.f")
    with pytest.raises(ValueError, match=message):
        specs.partial(spec, field="config.f")


def test_a_spec_may_not_repeat_what_the_framework_gives(lab):
    spec = {"target": f"{lab}:losses", "training": True}
    with pytest.raises(ValueError, match=r"config\.objective\.training is set by tfdist: remove it"):
        specs.partial(spec, field="config.objective", positional=2, training=True)
    with pytest.raises(ValueError, match=r"objective: .* cannot be called with these arguments: too many positional"):
        specs.partial({"target": f"{lab}:scale"}, field="config.objective", positional=3)


def test_an_import_error_inside_the_target_is_not_disguised(lab):
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        specs.resolve({"target": "my_broken_lab:f"}, field="config.model")


def test_the_default_config_is_valid_but_for_its_length():
    validate.validate(make())
    validate.validate(make(train=config.Train(steps=5)))
    for train in (config.Train(), config.Train(epochs=1, steps=5)):
        received = f"epochs={train.epochs}, steps={train.steps}"
        with pytest.raises(ValueError, match=f"exactly one of epochs and steps. Received: {received}"):
            validate.validate(make(train=train))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("data.batch_size", 1.5, r"must be int\. Received: 1\.5 \(float\)"),
        ("data.batch_size", "64", r"must be int\. Received: '64' \(str\)"),
        ("data.batch_size", True, r"must be int\. Received: True \(bool\)"),
        ("data.batch_size", None, r"must be int\. Received: None \(NoneType\)"),
        ("data.shuffle", 1, r"must be bool\. Received: 1 \(int\)"),
        ("data.evaluation_split", 3, r"must be str or None\. Received: 3 \(int\)"),
        ("model", "a:b", r"must be dict\. Received: 'a:b' \(str\)"),
        ("train", {"epochs": 3}, r"must be a Train\. Received: \{'epochs': 3\}"),
        ("evaluation.every", 3, r"must be a Every\. Received: 3"),
        ("data.batch_size", 0, r"must be at least 1\. Received: 0"),
        ("data.evaluation_batch_size", -1, r"must be at least 1\. Received: -1"),
        ("train.micro_batches", 0, r"must be at least 1\. Received: 0"),
        ("checkpoint.keep", 0, r"must be at least 1\. Received: 0"),
        ("cluster.logical_devices", 0, r"must be at least 1\. Received: 0"),
        ("report.every.steps", 0, r"must be at least 1\. Received: 0"),
        ("checkpoint.every.epochs", 0.0, r"must be above 0\. Received: 0\.0"),
        ("learning_rate.peak", -0.1, r"must be at least 0\. Received: -0\.1"),
        ("learning_rate.peak", float("nan"), r"must be at least 0\. Received: nan"),
        ("learning_rate.peak", float("inf"), r"must be at least 0\. Received: inf"),
        ("train.clip_norm", 0.0, r"must be above 0\. Received: 0\.0"),
        ("train.epochs", -1, r"must be above 0\. Received: -1"),
        ("cluster.connect_seconds", 0.5, r"must be at least 1\. Received: 0\.5"),
        ("cluster.heartbeat_seconds", 0, r"must be at least 1\. Received: 0"),
        ("cluster.time_limit_seconds", 0, r"must be at least 1\. Received: 0"),
        ("cluster.gpus", -1, r"must be None \(all\), a number of GPUs \(0: the CPU\) or a list of .* Received: -1"),
        ("cluster.gpus", [], r"must be None .* Received: \[\]"),
        ("cluster.gpus", [0, 0], r"must be None .* list of different indices from 0\. Received: \[0, 0\]"),
        ("cluster.gpus", "two", r"must be None .* Received: 'two'"),
        ("communication.bytes_per_pack", -1, r"must be at least 0\. Received: -1"),
        ("communication", None, r"must be a Communication\. Received: None"),
        ("train.precision", "bfloat", r"must be one of float32, .* Did you mean 'bfloat16'\? Received: 'bfloat'"),
        ("train.precision", "auto", r"must be one of .* config\.train\.precision='auto' was removed: set .*: 'auto'"),
        ("communication.implementation", "mpi", r"must be one of auto, nccl, ring, tcp\..* Received: 'mpi'"),
        ("communication.dtype", "fp8", r"must be one of float32, bfloat16, float16\. .*Received: 'fp8'"),
        ("data.cache", "disk", r"must be one of none, raw, prepared\. Received: 'disk'"),
        ("learning_rate.scaling", "liner", r"must be one of none, linear, sqrt\. Did you mean 'linear'\?"),
        ("checkpoint.best_mode", "maximum", r"must be one of max, min\..* Received: 'maximum'"),
        ("callbacks", {"target": "a:b"}, r"must be list\. Received: \{'target': 'a:b'\} \(dict\)"),
        ("callbacks", ["a:b"], r"must be a list of dicts with a \"target\"\. Received: 'a:b'"),
        (
            "optimizer",
            {"target": "a:b", "most": [float("inf")]},
            r".most\[0\] must be a finite number, .* Received: inf",
        ),
        ("model", {"target": "a:b", 1: 2}, r"must have texts as keys, such as '1'\. Received: 1"),
        ("seed", -1, r"must be at least 0\. Received: -1"),
        ("seed", 2**31, r"must be below 2\*\*31\. Received: 2147483648"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(name, value, message):
    whole = make()
    *sections, field = name.split(".")
    holder = whole
    for section in sections:
        holder = getattr(holder, section)
    setattr(holder, field, value)
    with pytest.raises(ValueError, match=rf"(?s)^The config is invalid:\n  config\.{name} ?{message}[^\n]*$"):
        features.check(whole)


def test_contradictions_between_fields_are_refused():
    with pytest.raises(
        ValueError, match=r"config\.cluster: .* 1024\.\.65535\. Received: port_base=60000, port_count=9999"
    ):
        validate.validate(make(cluster=config.ClusterOptions(port_base=60000, port_count=9999)))
    contradiction = {
        "data": config.Data(evaluation_split=None),
        "checkpoint": config.Checkpoint(best_metric="accuracy"),
    }
    with pytest.raises(
        ValueError, match=r"checkpoint\.best_metric='accuracy' needs evaluations, but data\.evaluation_split"
    ):
        validate.validate(make(**contradiction))


def test_all_wrong_fields_are_named_at_once():
    with pytest.raises(ValueError) as raised:
        validate.validate(make(data=config.Data(batch_size=0), seed=-1, train=config.Train()))
    lines = str(raised.value).splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["config.data.batch_size", "config.seed", "config.train:"]


def test_a_whole_number_will_do_where_a_float_is_meant():
    validate.validate(make(train=config.Train(epochs=3, clip_norm=1), learning_rate=config.LearningRate(peak=1)))


def test_a_field_that_does_not_exist_cannot_be_set():
    with pytest.raises(TypeError, match="batchsize"):
        config.Data(batchsize=3)
    with pytest.raises(AttributeError, match="batchsize"):
        make().data.batchsize = 3


def test_defaults_are_not_shared():
    make().optimizer["momentum"] = 0.0
    assert make().optimizer["momentum"] == 0.9


def test_flatten_names_every_leaf():
    whole = make(model={"target": "a:b", "sub": {"x": 1, "empty": {}}}, train=config.Train(steps=5))
    flat = dict(diff.flatten(whole))
    assert flat["model.target"] == "a:b" and flat["model.sub.x"] == 1 and flat["model.sub.empty"] == {}
    assert flat["evaluation.every.epochs"] == 1 and flat["seed"] == 0
    assert list(flat) == [name for name, _ in diff.flatten(dataclasses.asdict(whole))]


def test_differences_name_what_decides_the_weights_and_nothing_else():
    old, new = make(seed=1), make(seed=2)
    assert diff.differences(dataclasses.asdict(old), dataclasses.asdict(old)) == []
    new.model = {"target": "a:b", "width": 3}
    new.data.batch_size = 64
    new.checkpoint.keep, new.evaluation.every.epochs, new.report.tensorboard = 9, 7, False
    new.cluster.heartbeat_seconds = 3.0
    new.communication.bytes_per_pack, new.communication.implementation = 4096, "ring"
    assert diff.differences(dataclasses.asdict(old), dataclasses.asdict(new)) == [
        "data.batch_size: 128 was saved, now 64",
        "seed: 1 was saved, now 2",
        "model.width: '(absent)' was not set, now 3",
    ]


def test_a_saved_config_of_an_earlier_release_is_completed_with_defaults():
    whole = make(train=config.Train(epochs=3))
    saved = dataclasses.asdict(whole)
    del saved["train"]["xla"], saved["consistency"], saved["learning_rate"]["scaling"]
    assert diff.with_defaults(saved, make()) == dataclasses.asdict(whole)
    saved["model"] = {"target": "a:b"}  # A spec is not completed.
    assert diff.with_defaults(saved, make(model={"target": "c:d", "width": 3}))["model"] == {"target": "a:b"}


SPEC = {
    **{"target": "nets:small", "num_classes": 10, "rate": 0.5, "name": None, "on": True},
    **{"sizes": [1, 2], "shape": (8, 8)},
}
CONFIG_FILE = """
from tfdist.config import Config, Train

def get_config():
    model = {"target": "nets:small", "num_classes": 10, "rate": 0.5, "name": None, "on": True}
    model |= {"sizes": [1, 2], "shape": (8, 8)}
    return Config(model=model, train=Train(epochs=1.0), callbacks=[{"target": "nets:Note"}])
"""
CONFIG_DICT = """
import ml_collections

def get_config():
    config = ml_collections.ConfigDict()
    config.model = ml_collections.ConfigDict({"target": "nets:small", "num_classes": 10, "rate": 0.5, "name": None})
    config.model.update({"on": True, "sizes": [1, 2], "shape": (8, 8)})
    config.train = {"epochs": 1.0}
    config.callbacks = [ml_collections.ConfigDict({"target": "nets:Note"})]
    config.evaluation = ml_collections.ConfigDict({"every": {"epochs": 1}})
    config.data = ml_collections.ConfigDict({"evaluation_batch_size": ml_collections.config_dict.placeholder(int)})
    return config
"""
SCRIPT = """
import sys
from tfdist.config import diff, tool_flags, validate

parser = tool_flags.Parser("script.py", "Prints a config.")
parser.add_config()
args = parser.read(sys.argv[1:])
try:
    validate.validate(args.config)
except ValueError as error:
    sys.exit(str(error))
print(repr(dict(diff.flatten(args.config))), "tensorflow" in sys.modules)
"""


@pytest.fixture(scope="module")
def command_line(tmp_path_factory):
    directory = tmp_path_factory.mktemp("command_line")
    (directory / "base.py").write_text(CONFIG_FILE)
    (directory / "nets.py").write_text("import tensorflow\n\n\ndef small(num_classes, *, width=3):\n    pass\n")
    (directory / "dict.py").write_text(CONFIG_DICT)
    for name, line in {
        "section": "config.data.batchsize = 3",
        "field": "config.sed = 3",
        "type": "config.data.batch_size = 'many'",
    }.items():
        text = CONFIG_DICT.replace("return config", f"{line}\n    return config")
        (directory / f"wrong_{name}.py").write_text(text)
    (directory / "other.py").write_text("def get_config():\n    return {'seed': 3}\n")
    (directory / "empty.py").touch()
    (directory / "syntax.py").write_text("\ndef get_config(:\n")
    (directory / "typo.py").write_text(CONFIG_FILE.replace("Config(", "Config(sed=3, ", 1))
    (directory / "script.py").write_text(SCRIPT)

    def run(*arguments):
        command = [sys.executable, "script.py", *arguments]
        return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60)

    return run


def test_overrides_reach_sections_and_specs_by_their_types(command_line):
    overrides = {
        "data.batch_size": ("512", 512),
        "data.evaluation_split": ("none", None),
        "data.evaluation_batch_size": ("64", 64),
        "learning_rate.peak": ("1e-3", 0.001),
        "learning_rate.scaling": ("none", "none"),
        "train.epochs": ("none", None),
        "train.steps": ("100", 100),
        "train.clip_norm": ("1", 1.0),
        "evaluation.every.epochs": ("0.5", 0.5),
        "model.num_classes": ("5", 5),
        "model.rate": ("None", None),
        "model.sizes": ("[3, 4]", [3, 4]),
        "model.shape": ("(28, 28)", (28, 28)),
        "model.name": ("wide", "wide"),
        "model.on": ("false", False),
        "optimizer.momentum": ("0.5", 0.5),
        "seed": ("7", 7),
        "model.width": ("5", 5),  # An argument that the file does not set: its type is that of its default.
        "optimizer.nesterov": ("True", True),  # Of Keras: checked when the function is called.
    }
    done = command_line("--config=base.py", *(f"--config.{name}={text}" for name, (text, _) in overrides.items()))
    assert done.returncode == 0, done.stderr
    flat, tensorflow = done.stdout.rsplit(maxsplit=1)
    flat = eval(flat)
    assert {name: flat[name] for name in overrides} == {name: value for name, (_, value) in overrides.items()}
    assert type(flat["train.clip_norm"]) is float and flat["data.train_split"] == "train"
    assert tensorflow == "False"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            "--config.data.batchsize=3",
            "config.data.batchsize: base.py has no such field. Did you mean 'data.batch_size'?",
        ),
        (
            "--config.dat.batch_size=3",
            "config.dat.batch_size: base.py has no such field. Did you mean 'data.batch_size'?",
        ),
        ("--config.data.batch-size=3", "config.data.batch-size: base.py has no such field. Did you mean"),
        ("--noconfig.data.shufle", "config.data.shufle: base.py has no such field. Did you mean 'data.shuffle'?"),
        ("--config.model.num_clases=3", "base.py has no such field. Did you mean 'model.num_classes'?"),
        (
            "--config.model.widht=3",
            "base.py has no such field. Did you mean 'model.width'?",
        ),
        (
            "--config.model.colour=3",
            "'model' there sets: target, num_classes, rate, name, on, sizes, shape. nets:small has the arguments: "
            "num_classes, width.",
        ),
        ("--config.data.batch_size=abc", "--config.data.batch_size=abc: must be a whole number"),
        ("--config.data.batch_size=1.5", "--config.data.batch_size=1.5: must be a whole number"),
        ("--config.train.epochs=five", "--config.train.epochs=five: must be a number"),
        ("--config.data.batch_size=none", "config.data.batch_size must be int. Received: None"),
        ("--config.data.shuffle=perhaps", "--config.data.shuffle=perhaps: must be true or false"),
        ("--config.model.num_classes=ten", "--config.model.num_classes=ten: must be a whole number"),
        ("--config.model.sizes=[3", "--config.model.sizes=[3: must be a list in Python notation, or none"),
        ("--config.model.sizes=3", "--config.model.sizes=3: must be a list in Python notation, or none"),
        ("--config.train.epochs=none", "exactly one of epochs and steps. Received: epochs=None, steps=None"),
        (
            "--config.report.every=5",
            "--config.report.every is a group of fields. Set one of them: --config.report.every.steps, "
            "--config.report.every.epochs",
        ),
        ("--config.model.width=wide", "--config.model.width=wide: must be a whole number"),
        ("--config.lr=1", "config.lr: base.py has no such field. Did you mean 'learning_rate.peak'?"),
        ("--config.blue=1", "config.blue: base.py has no such field. --config=base.py --help lists all fields."),
        ("--batch-size=3", "there is no flag --batch-size. Did you mean --config.data.batch_size=3? "),
        ("--confg.seed=3", "there is no flag --confg.seed. Did you mean --config.seed=3? "),
    ],
)
def test_a_wrong_override_is_refused_with_its_field(command_line, argument, message):
    done = command_line("--config=base.py", argument)
    assert done.returncode == 1 and message in done.stderr and "KeyError" not in done.stderr
    assert "FATAL" not in done.stderr and "flag --config" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "script.py: give a config file, such as configs/digits.py, or the workdir of a run (--config)"),
        (["--config="], "give a config file"),
        (["digitz"], "--config=digitz: there is no file"),
        (["digitz"], "Did you mean --config=configs/digits.py?"),
        (["--config"], "script.py: --config: expected one argument"),
        (["--confg=base.py"], "there is no flag --confg. Did you mean --config=base.py? "),
        (["--config=bas"], "Did you mean --config=base.py?"),
        (["--config=empty.py"], "--config=empty.py: the file must define get_config(), which returns a tfdist.config"),
        (["--config=syntax.py"], "--config=syntax.py: syntax.py, line 2, `def get_config(:`: invalid syntax."),
        (["--config=typo.py"], "Config.__init__() got an unexpected keyword argument 'sed'."),
        (["bse.py"], "/bse.py. Did you mean --config=base.py?"),
        (["--config=nowhere.py"], "--config=nowhere.py: there is no file /"),
        (["--config", "nowhere.py"], "--config=nowhere.py: there is no file /"),
        (["--config=base.py", "eval"], "'eval' is one word too many."),
        (["base.py", "eval"], "'eval' is one word too many."),
        (["--config=other.py"], "get_config() must return a tfdist.config.Config or a ConfigDict. Received: dict"),
    ],
)
def test_a_command_line_that_cannot_be_meant_so_is_refused(command_line, arguments, message):
    done = command_line(*arguments)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


def read(*words):
    """Reads the flags of a run."""
    parser = tool_flags.Parser("main", "")
    parser.add_run_flags()
    return parser.read(words)


def test_a_config_file_may_be_given_without_its_flag_and_fields_before_it():
    for given in (["--config", "digits"], ["--config=digits"], ["digits"], ["configs/digits.py"], ["digits.py"]):
        args = read("--workdir", "digits", "--config.seed", "1", *given, "--config.train.epochs=2")
        assert (args.config.seed, args.config.train.epochs) == (1, 2.0)
        assert args.workdir == pathlib.Path("digits") and args.config_name == "digits"
        config, *fields = args.config_words
        assert config == f"--config={args.config_file}" and pathlib.Path(args.config_file).is_file()
        assert fields == ["--config.seed=1", "--config.train.epochs=2"]
    assert read("digits").workdir == pathlib.Path("runs/digits")


def fields(done):
    """The fields that the script has printed; a ConfigDict sorts its names."""
    return eval(done.stdout.rsplit(maxsplit=1)[0])


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param([], marks=pytest.mark.slow),
        ["--config.data.batch_size=48", "--config.train.steps=7"],
    ],
)
def test_a_config_dict_is_the_config_of_the_same_fields(command_line, overrides):
    overrides = [*overrides, "--config.train.epochs=none"] if overrides else []
    expected = command_line("base.py", *overrides)
    assert expected.returncode == 0, expected.stderr
    done = command_line("dict.py", *overrides)
    assert done.returncode == 0, done.stderr
    assert fields(done) == fields(expected)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--config=wrong_section.py", "config.data has no field 'batchsize'. Did you mean 'batch_size'?"),
        ("--config=wrong_field.py", "config has no field 'sed'. Did you mean 'seed'?"),
        ("--config=wrong_type.py", "config.data.batch_size must be int. Received: 'many' (str)"),
    ],
)
def test_a_config_dict_is_checked_as_the_dataclass_is(command_line, argument, message):
    done = command_line(argument)
    assert done.returncode == 1 and message in done.stderr


@pytest.mark.parametrize("word", slow_except(["--help", "-h"], ["--help"]))
def test_help_needs_no_config_and_is_a_success(command_line, word):
    done = command_line(word)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("usage: script.py ") and "\n\nPrints a config.\n" in done.stdout
    assert "  --config FILE " in done.stdout and "--config.NAME VALUE" in done.stdout
    assert "script.py:" not in done.stdout and "absl" not in done.stdout and "--stderrthreshold" not in done.stdout


def test_help_lists_the_fields_of_a_config_with_their_values_and_meanings(command_line):
    done = command_line("base.py", "--config.data.batch_size=48", "--help")
    assert done.returncode == 0 and max(map(len, done.stdout.splitlines())) <= 100
    named = re.findall(r"^  --config\.([\w.]+)=(.*)$", done.stdout, re.MULTILINE)
    flat = dict(named[1:] if named[0][0] == "NAME" else named)
    assert list(flat) == [name for name, _ in diff.flatten(make(model=SPEC, train=config.Train(epochs=1.0)))]
    assert flat["data.batch_size"] == "48" and flat["model.num_classes"] == "10" and flat["train.steps"] == "none"
    assert "Examples per evaluation step over all replicas, rounded up to a multiple" in done.stdout
    assert "data: The dataset, its preprocessing and the batches." in done.stdout
    plain = " ".join(done.stdout.split())
    for kind in (config.Data, config.LearningRate, config.Train, config.Checkpoint, config.Report, config.Config):
        meanings = {field: meaning for (name, field), meaning in field_help.meanings().items() if name == kind.__name__}
        assert all(meaning in plain for meaning in meanings.values())
        assert all(meanings.get(field.name) for field in dataclasses.fields(kind) if field.type is int)


def test_the_package_lists_its_public_functions():
    import tfdist

    assert {"connect", "fit", "evaluate", "predict"} <= set(dir(tfdist)) and set(tfdist.__all__) <= set(dir(tfdist))


def test_the_values_of_a_field_are_those_of_its_type():
    values = dict(specs.choices(schema.Data))
    assert values["cache"] == ("none", "raw", "prepared") and "train_split" not in values
    sections = [getattr(make(), field.name) for field in dataclasses.fields(make())]
    found = [name for one in sections if dataclasses.is_dataclass(one) for name, _ in specs.choices(one)]
    assert len(found) == 11


def test_sections_of_saved_runs_may_have_their_old_names():
    read = config_dict.to_config(ml_collections.ConfigDict({"model": {}, "agreement": {"every": {"steps": 4}}}))
    assert read.consistency.every.steps == 4
