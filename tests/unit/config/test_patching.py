"""Attributes of others are replaced by one module, and docs/what-is-replaced.md lists every call of it."""

import ast
import pathlib
import re
import threading
import types

import pytest

from tfdist.config import patching

ROOT = pathlib.Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "what-is-replaced.md").read_text()
FUNCTIONS = ("patch", "replace_attribute", "replace_until_end", "restore_after")
# An expression of the source -> what the page calls the object; other expressions are on the page as they are.
OBJECTS = {
    "_SEEDS": "the module of `tf.compat.v1.random.get_seed`",
    "atexit": "module `atexit`",
    "bit_generator": "module `numpy.random.bit_generator`",
    "default": "class of the default strategy",
    "gen_random_ops": "module `gen_random_ops`",
    "generator": "seed generators of Keras",
    "getattr(owner, name)": "refused strategies of `tf.distribute`",
    "kind": "classes of optimizers",
    "layer": "layers",
    "metric": "metrics",
    "model": "the model",
    "multi_device_iterator_ops": "module `multi_device_iterator_ops`",
    "one": "objects that a step reads",
    "optimizer": "the optimizer",
    "seed_generator": "module `keras.src.random.seed_generator`",
    "session": "TensorFlow's eager context",
    "tempfile": "module `tempfile`",
    "tf": "module `tf`",
    "values.MirroredVariable": "`MirroredVariable`",
    "variable.value": "variables of metrics",
}
# The file -> what the page calls the objects of the variable `owner`, which is one of several.
OWNERS = {
    "cluster/script_strategy.py": "modules of `tf.distribute`",
    "cluster/several_workers/multi_worker.py": "`CollectiveAllReduceExtended`",
    "keras_fit/patches.py": "classes and modules of Keras and TensorFlow",
    "keras_fit/script/model_methods.py": "classes and modules of Keras and TensorFlow",
    "keras_fit/script/written_files.py": "functions and classes that write files",
    "keras_fit/whole_batch/one_replica.py": "`tf.distribute.Strategy`, `tf.distribute.ReplicaContext`",
    "keras_fit/whole_batch/probe.py": "modules `keras.random` and `tf.random`",
}


def calls(source):
    """Yields (owner, name or None) of each call of `patching`; None: the name is computed."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("patching.") in FUNCTIONS:
            owner, name = node.args[:2]
            yield ast.unparse(owner), name.value if isinstance(name, ast.Constant) else None


def replacements_by_hand(source):
    """Lists where a module sets an attribute of a module or class that it imports, or calls setattr or delattr."""
    tree = ast.parse(source)
    imported = {
        (name.asname or name.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    found = []
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Attribute) and ast.unparse(target).partition(".")[0] in imported:
                found.append(ast.unparse(target))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            found.append(ast.unparse(node.args[0]))
    return found


def object_of(file, expression):
    """Returns what the page calls the object of a call; `restore_after` takes a list of one."""
    name = expression.strip("[]")
    return OWNERS.get(file, "`owner`") if name == "owner" else OBJECTS.get(name, f"`{name}`")


def rows():
    """(file, object) -> the names of each row of the page."""
    table = PAGE[: PAGE.index("## Private names")]
    cells = [re.split(r" \| ", line.strip("| ")) for line in table.splitlines() if line.startswith("| `")]
    assert all(len(row) == 6 for row in cells)
    keys = [(row[0].strip("`"), row[1]) for row in cells]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, [row[2] for row in cells], strict=True))


def sources():
    return {str(path.relative_to(ROOT / "tfdist")): path.read_text() for path in (ROOT / "tfdist").rglob("*.py")}


def test_the_page_lists_every_replacement_and_nothing_else():
    listed, found = rows(), set()
    for file, source in sources().items():
        for owner, name in calls(source) if file != "config/patching.py" else ():
            key = (file, object_of(file, owner))
            found.add(key)
            assert key in listed, f"docs/what-is-replaced.md has no row for {owner} in {file}"
            assert name is None or f"`{name}`" in listed[key], f"{owner}.{name} in {file}"
    assert listed.keys() == found and len(found) > 25


def test_no_other_module_replaces_anything():
    # Of the process itself; a field of a config; a callback's saved state; a cache's attributes.
    allowed = {"sys.excepthook", "sys.stdout", "sys.stderr", "holder", "callback", "self"}
    by_hand = {file: set(replacements_by_hand(source)) - allowed for file, source in sources().items()}
    by_hand.pop("config/patching.py")
    assert {file: found for file, found in by_hand.items() if found} == {}
    sample = "from keras import ops\nops.cond = g\nself.x = keras\nsetattr(a, 'b', 1)\n"
    assert replacements_by_hand(sample) == ["ops.cond", "a"]


class Base:
    def double(self, value):
        return 2 * value


class Derived(Base):
    pass


def test_a_method_is_replaced_in_the_block_and_restored_where_it_was():
    def tripled(original, self, value):
        return original(self, value) + value

    for owner in (Base, Derived):
        before = dict(vars(owner))
        with pytest.raises(KeyError), patching.patch(owner, "double", tripled):
            assert Derived().double(5) == 15
            raise KeyError
        assert dict(vars(owner)) == before and Derived().double(5) == 10


def test_settings_of_a_block_are_as_before_at_its_end():
    settings = type("Settings", (threading.local,), {"first": 1, "second": None})()
    with pytest.raises(KeyError), patching.set_in_block(settings, first=2, other=3):
        with patching.set_in_block(settings, first=4, second=5):
            assert (settings.first, settings.second, settings.other) == (4, 5, 3)
        assert (settings.first, settings.second) == (2, None)
        raise KeyError
    assert settings.first == 1 and vars(settings) == {}


def test_attributes_are_restored_unless_other_code_has_set_them_since():
    class Kind:
        def method(self):
            return 1

    kept, before = types.SimpleNamespace(), dict(vars(Kind))
    patching.replace_until_end(kept, "of_no_block", 1)
    with pytest.raises(KeyError), patching.restore_attributes():
        one = types.SimpleNamespace(first=1, second=2)  # It need not exist before the block.
        patching.replace_until_end(Kind, "method", lambda self: 2)
        patching.replace_until_end(one, "first", 5)
        with patching.restore_attributes():
            patching.replace_until_end(one, "first", 6)
            patching.replace_until_end(one, "added", 7)
        assert Kind().method() == 2 and vars(one) == {"first": 5, "second": 2}
        patching.replace_until_end(one, "second", 8)
        one.second = 9
        raise KeyError
    assert vars(one) == {"first": 1, "second": 9} and vars(kept) == {"of_no_block": 1}
    assert dict(vars(Kind)) == before and Kind().method() == 1
