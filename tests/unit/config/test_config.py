"""The config and the flags that override it: every documented error, by its message."""

import dataclasses
import functools
import pathlib
import re
import sys

import ml_collections
import numpy as np
import pytest

from tfdist import config
from tfdist.config import config_dict, diff, field_help, specs, tool_flags, validate
from tfdist.training import features


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


def make(**changes):
    return config.Config(**{"model": {"target": "a:b"}, "train": config.Train(epochs=1)} | changes)


def test_build_calls_the_target_with_the_other_items():
    spec = {"target": f"{__name__}:scale", "offset": 2}
    assert specs.build(spec, 4, field="config.model") == 42
    assert specs.build({"target": f"{__name__}:scale"}, field="config.model", factor=5) == 50
    assert specs.build({"target": f"{__name__}:Family.member", "width": 7}, field="config.model") == 7
    assert specs.build({"target": f"{__name__}:anything", "x": 1}, field="config.model", y=2) == {"x": 1, "y": 2}
    assert spec == {"target": f"{__name__}:scale", "offset": 2}


def test_partial_calls_later_with_the_arguments_of_both():
    spec = {"target": f"{__name__}:losses", "gamma": 2.0}
    call = specs.partial(spec, field="config.objective", positional=2, training=True)
    assert call("model", "batch", training=False) == ("model", "batch", False, 2.0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, r"config\.f\.target must name a function .* None"),
        *(({"target": wrong}, r"config\.f\.target must name a function") for wrong in ("no_colon", "a:b:c", 3)),
        ({"target": "os.no_such:f"}, r"config\.f\.target='os\.no_such:f': there is no module 'os\.no_such'"),
        ({"target": f"{__name__}:scael"}, r"config\.f\.target='.*:scael': .* Did you mean 'scale'\?"),
        ({"target": f"{__name__}:Family.membr"}, r"Did you mean 'member'\?"),
        ({"target": "tfdist.zoo.objectives:classifier"}, r"is not callable: <module 'tfdist\.zoo\.objectives\.cl"),
        ({"target": f"{__name__}:scale", "ofset": 1}, r"config\.f\.ofset: .*'ofset'.*mean 'offset'\?"),
        ({"target": f"{__name__}:scale", "xyz": 1}, r"It has: factor, offset\."),
        ({"target": f"{__name__}:scale"}, r"config\.f: .*:scale .* missing .* 'factor'"),
    ],
)
def test_a_spec_that_cannot_be_built_says_why(spec, message):
    for make_it in (specs.build, specs.partial):
        with pytest.raises(ValueError, match=message):
            make_it(spec, field="config.f")


def test_a_spec_may_not_repeat_what_the_framework_gives():
    spec = {"target": f"{__name__}:losses", "training": True}
    with pytest.raises(ValueError, match=r"config\.objective\.training is set by tfdist: remove it"):
        specs.partial(spec, field="config.objective", positional=2, training=True)
    with pytest.raises(ValueError, match=r"objective: .* cannot be called with these arguments: too many positional"):
        specs.partial({"target": f"{__name__}:scale"}, field="config.objective", positional=3)


def test_an_import_error_inside_the_target_is_not_disguised(tmp_path, monkeypatch):
    (tmp_path / "my_broken_lab.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        specs.resolve({"target": "my_broken_lab:f"}, field="config.model")


def test_the_default_config_is_valid_but_for_its_length():
    validate.validate(make())
    validate.validate(make(train=config.Train(steps=5, clip_norm=1)))  # A float is meant.


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("data.batch_size", "64", "be a whole number. Received: '64' (str)"),
        ("data.batch_size", True, "be a whole number. Received: True (bool)"),
        ("data.shuffle", 1, "be true or false. Received: 1 (int)"),
        ("data.evaluation_split", 3, "be a string or None. Received: 3 (int)"),
        ("model", "a:b", "be a dict. Received: 'a:b' (str)"),
        ("train", {"epochs": 3}, "be a Train. Received: {'epochs': 3}"),
        *((name, 0, "at least 1. Received: 0") for name in ("data.batch_size", "data.evaluation_batch_size")),
        *((name, 0, "at least 1. Received: 0") for name in ("train.micro_batches", "checkpoint.keep")),
        ("report.every.steps", 0, "be at least 1. Received: 0"),
        ("checkpoint.every.epochs", 0.0, "be above 0. Received: 0.0"),
        *(("learning_rate.peak", wrong, f"Received: {wrong}") for wrong in (-0.1, float("nan"), float("inf"))),
        ("train.epochs", -1, "be above 0. Received: -1"),
        *((f"cluster.{of}_seconds", 0.5, "be at least 1. Received: 0.5") for of in ("connect", "heartbeat")),
        *(("cluster.gpus", wrong, f"Received: {wrong!r}") for wrong in (-1, [], [0, 0], "two")),
        ("communication.bytes_per_pack", -1, "be at least 0. Received: -1"),
        ("train.precision", "bfloat", "Did you mean 'bfloat16'? Received: 'bfloat'"),
        ("data.cache", "disk", "be one of none, raw. Received: 'disk'"),
        ("callbacks", {"target": "a:b"}, "be a list. Received: {'target': 'a:b'} (dict)"),
        ("callbacks", ["a:b"], "Received: 'a:b'"),
        ("optimizer", {"target": "a:b", "most": [float("inf")]}, "be a finite number"),
        ("model", {"target": "a:b", 1: 2}, "Received: 1"),
        ("data.source", {"target": "a:b", "x": [np.zeros(2)]}, "make arrays and other objects in the function"),
        ("seed", -1, "be at least 0. Received: -1"),
        ("seed", 2**31, "be below 2**31. Received: 2147483648"),
        *(("report.profile", wrong, "be [first, last]") for wrong in ([], [0, 3], [5, 4], [1, 2.0], [1])),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(name, value, message):
    whole = make()
    *sections, field = name.split(".")
    setattr(functools.reduce(getattr, sections, whole), field, value)
    with pytest.raises(ValueError, match=rf"(?s)^The config is invalid:\n  config\.{name}[^\n]*{re.escape(message)}"):
        features.validate_config(whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": config.Train()}, "epochs=None, steps=None"),
        ({"train": config.Train(epochs=1, steps=5)}, "epochs=1, steps=5"),
        ({"data": config.Data(cache_dir="/x")}, r"data\.cache_dir='/x' has no effect"),
        ({"cluster": config.ClusterOptions(port_base=60000, port_count=9999)}, "port_base=60000, port_count=9999"),
        (
            {"data": config.Data(evaluation_split=None), "checkpoint": config.Checkpoint(best_metric="accuracy")},
            r"checkpoint\.best_metric='accuracy' needs evaluations",
        ),
    ],
)
def test_contradictions_between_fields_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        validate.validate(make(**changes))


def test_all_wrong_fields_are_named_at_once():
    with pytest.raises(ValueError) as raised:
        validate.validate(make(data=config.Data(batch_size=0), seed=-1, train=config.Train()))
    lines = str(raised.value).splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["config.data.batch_size", "config.seed", "config.train:"]


def test_differences_name_what_decides_the_weights_and_nothing_else():
    old, new = make(seed=1), make(seed=2)
    assert diff.differences(dataclasses.asdict(old), dataclasses.asdict(old)) == []
    new.model = {"target": "a:b", "width": 3}
    new.data.batch_size = 64
    new.checkpoint.keep, new.evaluation.every.epochs, new.report.tensorboard = 9, 7, False
    new.cluster.heartbeat_seconds, new.data.cache = 3.0, "raw"
    new.communication.bytes_per_pack, new.communication.implementation = 4096, "ring"
    assert diff.differences(dataclasses.asdict(old), dataclasses.asdict(new)) == [
        "config.data.batch_size: 128 was saved, now 64",
        "config.seed: 1 was saved, now 2",
        "config.model.width: '(absent)' was not set, now 3",
    ]


def test_a_saved_config_of_an_earlier_release_is_completed_with_defaults():
    whole = make(train=config.Train(epochs=3))
    saved = dataclasses.asdict(whole)
    del saved["train"]["xla"], saved["consistency"], saved["learning_rate"]["scaling"]
    saved["report"]["of_another_release"] = 3
    assert config_dict.from_saved(saved) == whole
    with pytest.raises(ValueError, match=r"config\.data has no field 'order'"):
        config_dict.from_saved(saved | {"data": {"order": 3}})
    saved["model"] = {"target": "a:b"}  # A spec is not completed.
    assert config_dict.from_saved(saved).model == {"target": "a:b"}


SPEC = {
    **{"target": "nets:small", "num_classes": 10, "rate": 0.5, "name": None, "on": True},
    **{"sizes": [1, 2], "shape": (8, 8)},
}
CONFIG_FILE = f"""
from tfdist.config import Config, Train

def get_config():
    return Config(model={SPEC}, train=Train(epochs=1.0), callbacks=[{{"target": "nets:Note"}}])
"""
CONFIG_DICT = f"""
import ml_collections

def get_config():
    config = ml_collections.ConfigDict()
    config.model = ml_collections.ConfigDict({SPEC})
    config.train = {{"epochs": 1.0}}
    config.callbacks = [ml_collections.ConfigDict({{"target": "nets:Note"}})]
    config.evaluation = ml_collections.ConfigDict({{"every": {{"epochs": 1}}}})
    config.data = ml_collections.ConfigDict({{"evaluation_batch_size": ml_collections.config_dict.placeholder(int)}})
    return config
"""


@pytest.fixture
def command_line(tmp_path, monkeypatch):
    """(words) -> the config that they mean, in a folder with some config files."""
    files = {"base": CONFIG_FILE, "nets": "import tensorflow\n\n\ndef small(num_classes, *, width=3):\n    pass\n"}
    files |= {"dict": CONFIG_DICT, "empty": "", "syntax": "\ndef get_config(:\n"}
    files |= {"other": "def get_config():\n    return {'seed': 3}\n"}
    files |= {"typo": CONFIG_FILE.replace("Config(model", "Config(sed=3, model")}
    files |= {"section": CONFIG_FILE.replace("epochs=1.0", "callbacks=[]")}
    for name, line in {"section": "data.batchsize = 3", "field": "sed = 3", "type": "data.batch_size = 'many'"}.items():
        files[f"wrong_{name}"] = CONFIG_DICT.replace("return config", f"config.{line}\n    return config")
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])

    def read(*words):
        parser = tool_flags.Parser("script.py", "Prints a config.")
        parser.add_config()
        found = parser.read(words).config
        validate.validate(found)
        return found

    return read


def test_overrides_reach_sections_and_specs_by_their_types(command_line):
    overrides = {
        "data.batch_size": ("512", 512),
        "data.evaluation_split": ("none", None),
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
        "model.width": ("5", 5),  # An argument that the file does not set: checked when the function is called.
        "optimizer.nesterov": ("true", True),
        "cluster.gpus": ("[0, 2]", [0, 2]),
    }
    words = [f"--config.{name}={text}" for name, (text, _) in overrides.items()]
    flat = dict(diff.flatten(command_line("--config=base.py", *words)))
    assert {name: flat[name] for name in overrides} == {name: value for name, (_, value) in overrides.items()}
    assert type(flat["train.clip_norm"]) is float and flat["data.train_split"] == "train"
    assert command_line("--config=base.py", "--noconfig.data.shuffle", "--config.report.summary").report.summary
    assert not command_line("--config=base.py", "--noconfig.data.shuffle", "--config.report.summary").data.shuffle


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--config.data.batchsize=3", "config.data.batchsize: base.py has no such field. .* 'data.batch_size'?"),
        ("--noconfig.data.shufle", "config.data.shufle: .* Did you mean 'data.shuffle'?"),
        ("--config.model.size.width=3", "Did you mean 'model.sizes.width'?"),
        ("--config.data.batch_size=1.5", "--config.data.batch_size=1.5: must be a whole number."),
        ("--config.train.epochs=five", "--config.train.epochs=five: must be a number."),
        ("--config.data.batch_size=none", "config.data.batch_size must be a whole number. Received: None"),
        ("--config.data.shuffle=perhaps", "--config.data.shuffle=perhaps: must be true or false."),
        ("--config.model.num_classes=ten", "--config.model.num_classes=ten: must be a whole number."),
        ("--config.model.sizes=[3", "--config.model.sizes=[3: must be a list."),
        ("--config.report.every=5", "--config.report.every.steps, --config.report.every.epochs"),
        ("--config.lr=1", "config.lr: .* Did you mean 'learning_rate.peak'?"),
        ("--config.blue=1", "config.blue: base.py has no such field. --config=base.py --help lists all fields."),
        ("--batch-size=3", "--batch-size. Did you mean --config.data.batch_size=3? "),
        ("--confg.seed=3", "--confg.seed. Did you mean --config.seed=3? "),
    ],
)
def test_a_wrong_override_is_refused_with_its_field(command_line, argument, message):
    with pytest.raises((SystemExit, ValueError), match=re.escape(message).replace(r"\.\*", ".*")):
        command_line("--config=base.py", argument)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "script.py: give a config file"),
        (["digitz"], "Did you mean --config=configs/digits.py?"),
        (["--config=bas"], "Did you mean --config=base.py?"),
        (["--config=empty.py"], "--config=empty.py: the file must define get_config()"),
        (["--config=syntax.py"], "--config=syntax.py: syntax.py, line 2, `def get_config(:`: invalid syntax."),
        (["--config=typo.py"], "unexpected keyword argument 'sed'. Did you mean the field config.seed?"),
        (["--config=section.py"], "unexpected keyword argument 'callbacks'. Did you mean the field config.callbacks?"),
        (["bse.py"], "/bse.py. Did you mean --config=base.py?"),
        (["base.py", "--config.data.prepare={'target': 'a:b'}", "--config.data.prepare.new=3"], "data.prepare.new"),
        (["--config", "nowhere.py"], "--config=nowhere.py: there is no file /"),
        (["base.py", "eval"], "unexpected argument 'eval'"),
        (["--config=other.py"], "get_config() must return a tfdist.config.Config or a ConfigDict. Received: dict"),
        (["--config=wrong_section.py"], "config.data has no field 'batchsize'. Did you mean 'batch_size'?"),
        (["--config=wrong_field.py"], "config has no field 'sed'. Did you mean 'seed'?"),
        (["--config=wrong_type.py"], "config.data.batch_size must be a whole number. Received: 'many' (str)"),
    ],
)
def test_a_command_line_that_cannot_be_meant_so_is_refused(command_line, words, message):
    with pytest.raises((SystemExit, ValueError), match=re.escape(message)):
        command_line(*words)


def test_a_config_file_may_be_given_without_its_flag_and_fields_before_it():
    def read(*words):
        parser = tool_flags.Parser("main", "")
        parser.add_run_flags()
        return parser.read(words)

    for given in (["--config", "digits"], ["--config=digits"], ["digits"], ["configs/digits.py"], ["digits.py"]):
        args = read("--workdir", "digits", "--config.seed", "1", *given, "--config.train.epochs=2")
        assert (args.config.seed, args.config.train.epochs) == (1, 2.0)
        assert args.workdir == pathlib.Path("digits") and args.config_name == "digits"
        config, *fields = args.config_words
        assert config == f"--config={args.config_file}" and pathlib.Path(args.config_file).is_file()
        assert fields == ["--config.seed=1", "--config.train.epochs=2"]
    assert read("digits").workdir == pathlib.Path("runs/digits")


def test_a_config_dict_is_the_config_of_the_same_fields(command_line):
    words = ["--config.data.batch_size=48", "--config.train.steps=7", "--config.train.epochs=none"]
    assert command_line("dict.py", *words) == command_line("base.py", *words)


def test_help_lists_the_fields_of_a_config_with_their_values_and_meanings(command_line, capsys):
    with pytest.raises(SystemExit) as end:
        command_line("base.py", "--config.data.batch_size=48", "--help")
    said = capsys.readouterr().out
    assert end.value.code == 0 and said.startswith("usage: script.py ")
    assert max(map(len, said.splitlines())) <= 100
    named = re.findall(r"^  --config\.([\w.]+)=(.*)$", said, re.MULTILINE)
    flat = dict(named[1:] if named[0][0] == "NAME" else named)
    assert list(flat) == [name for name, _ in diff.flatten(make(model=SPEC, train=config.Train(epochs=1.0)))]
    assert flat["data.batch_size"] == "48" and flat["model.num_classes"] == "10" and flat["train.steps"] == "none"
    plain = " ".join(said.split())
    for kind in (config.Data, config.LearningRate, config.Train, config.Checkpoint, config.Report, config.Config):
        meanings = {field: meaning for (name, field), meaning in field_help.meanings().items() if name == kind.__name__}
        assert all(meaning in plain for meaning in meanings.values())
        assert all(meanings.get(field.name) for field in dataclasses.fields(kind) if field.type is int)


def test_the_package_lists_its_public_functions():
    import tfdist

    assert {"connect", "fit", "evaluate", "predict"} <= set(dir(tfdist)) and set(tfdist.__all__) <= set(dir(tfdist))


def test_sections_of_saved_runs_may_have_their_old_names():
    read = config_dict.to_config(ml_collections.ConfigDict({"model": {}, "agreement": {"every": {"steps": 4}}}))
    assert read.consistency.every.steps == 4
