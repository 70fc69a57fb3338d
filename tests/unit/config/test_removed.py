"""What was removed gets its sentence: fields, values, commands and modules, in files, flags and saved runs."""

import re

import pytest

import tfdist
from tfdist import config
from tfdist.config import config_dict, diff, load, removed, specs

MODEL = {"target": "tfdist.zoo.models:mlp"}


def saved(name, value):
    """A saved config with one more field."""
    found = diff.to_json(config.Config(model=MODEL, train=config.Train(steps=1)))
    section, *parts, last = name.split(".")
    holder = found.setdefault(section, {})
    for part in parts:
        holder = holder.setdefault(part, {})
    holder[last] = value
    return found


def test_no_removed_field_exists():
    now = {name for name, _ in diff.flatten(config.Config(model=MODEL))}
    assert removed.FIELDS and not now & removed.FIELDS.keys()


@pytest.mark.parametrize("name", removed.FIELDS)
def test_a_saved_field_at_its_default_resumes_and_another_value_is_refused(name):
    default, instead = removed.FIELDS[name]
    resumed = config_dict.from_saved(saved(name, None if default is removed.ANY else default))
    assert resumed == config.Config(model=MODEL, train=config.Train(steps=1))
    if default is not removed.ANY:
        with pytest.raises(ValueError) as error:
            config_dict.from_saved(saved(name, 7))
        assert f"config.{name} was removed: {instead} Received: 7" in str(error.value)


@pytest.mark.parametrize("name", removed.FIELDS)
def test_flags_and_config_files_that_set_a_removed_field_get_its_sentence(name, tmp_path):
    sections = {key: type(getattr(config.Config(model=MODEL), key)).__name__ for key in config.Config.__slots__}
    section, first = name.split(".")[:2]
    of_file, sentence = f"config.{section}.{first}", removed.FIELDS[name][1]
    for line, words, said in (
        ("", [f"--config.{name}=1"], f"--config.{name} was removed: {sentence}"),
        (f"config.{sections[section]}({first}=1)", [], f"{of_file} was removed: {sentence}"),
        (f"made.{section}.{first} = 1", [], f"{of_file} was removed: {sentence}"),
    ):
        path = tmp_path / f"mine{len(line)}.py"
        body = f"    made = config.Config(model={MODEL!r})\n    {line}\n    return made\n"
        path.write_text(f"from tfdist import config\ndef get_config():\n{body}")
        with pytest.raises(SystemExit) as end:
            load.load(str(path), words)
        assert said in end.value.code


@pytest.mark.parametrize("name", removed.MODULES)
def test_a_spec_that_names_a_removed_module_gets_its_sentence(name):
    with pytest.raises(ValueError, match="was removed: "):
        specs.resolve({"target": name if ":" in name else f"{name}:x"}, field="config.callbacks[0]")


def test_a_removed_function_of_the_package_gets_its_sentence():
    with pytest.raises(AttributeError, match=re.escape(removed.MODULES["tfdist.all_gather"])):
        tfdist.all_gather  # noqa: B018
