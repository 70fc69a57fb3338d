"""What was removed gets its sentence: fields, values, commands and modules, in files, flags and saved runs."""

import json

import pytest
from launching import tfdist as command

from tfdist import config
from tfdist.config import config_dict, diff, load, removed, specs

MODEL = {"target": "tfdist.zoo.models:mlp"}


FIELDS = [name.removeprefix("config.") for name in removed.INSTEAD if name.startswith("config.")]
NOW = config.Config(model=MODEL, train=config.Train(steps=1))


def saved(name, value):
    """A saved config with one more field."""
    found, (section, field) = diff.to_json(NOW), name.split(".")
    found.setdefault(section, {})[field] = value
    return found


def test_no_removed_field_exists():
    now = {name for name, _ in diff.flatten(config.Config(model=MODEL))}
    assert FIELDS and not now & {*FIELDS}


@pytest.mark.parametrize("name", FIELDS)
def test_a_saved_field_is_dropped_or_refused_if_the_run_has_trained_by_it(name):
    usual = {"data.auto_shard": "auto", "train.asynchronous": False, "train.local_steps": 1}
    assert config_dict.from_saved(saved(name, usual.get(name, 7))) == NOW
    if name in usual:
        with pytest.raises(ValueError) as error:
            config_dict.from_saved(saved(name, 7))
        assert f"config.{name} was removed: {removed.INSTEAD[f'config.{name}']} Received: 7" in str(error.value)


@pytest.mark.parametrize("name", FIELDS)
def test_flags_and_config_files_that_set_a_removed_field_get_its_sentence(name, tmp_path):
    sections = {key: type(getattr(config.Config(model=MODEL), key)).__name__ for key in config.Config.__slots__}
    section, field = name.split(".")
    sentence = f"config.{name} was removed: {removed.INSTEAD[f'config.{name}']}"
    for line, words in (
        ("", [f"--config.{name}=1"]),
        (f"config.{sections[section]}({field}=1)", []),
        (f"made.{section}.{field} = 1", []),
        (f"made = ml_collections.ConfigDict({{'{section}': {{'{field}': 1}}}})", []),
    ):
        path = tmp_path / f"mine{len(line)}.py"
        body = f"    made = config.Config(model={MODEL!r})\n    {line}\n    return made\n"
        path.write_text(f"import ml_collections\nfrom tfdist import config\ndef get_config():\n{body}")
        with pytest.raises(SystemExit) as end:
            load.load(str(path), words)
        assert sentence in end.value.code


MODULES = [name for name in removed.INSTEAD if name.startswith(("tfdist.tools", "tfdist.zoo"))]


@pytest.mark.parametrize("name", MODULES)
def test_a_spec_that_names_a_removed_module_gets_its_sentence(name):
    with pytest.raises(ValueError, match="was removed: "):
        specs.resolve({"target": name if ":" in name else f"{name}:x"}, field="config.callbacks[0]")


def test_fields_get_their_sentences_from_the_terminal(tmp_path):
    def run(*words):
        return command(*words, code=1, cwd=tmp_path).stderr.strip()

    assert run("train", "digits", "--config.report.verbose=1") == f"--{removed.sentence('config.report.verbose')}"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(saved("train.local_steps", 4)))
    text = run("train", "run")
    assert "config.train.local_steps was removed: " in text and text.endswith("Received: 4")
