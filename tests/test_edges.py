"""How much of the package one must know at once: lines, import closures, fields, private names, against `edges.json`.

Each number there is a maximum. If you lower a number, lower its maximum too. If you raise one, give the reason in
"rises": the feature, the lines and why.
"""

import ast
import functools
import json
import pathlib
import re

import pytest
import test_house

from tfdist.config import schema

EDGES = json.loads((pathlib.Path(__file__).parent / "edges.json").read_text())
# What they name by dotted paths is not imported by them: the front door, and the defaults of a config.
NAME_ONLY = ("tfdist", "tfdist.config.schema")
# Modules off the reading path that a file of it may import, if edges.json does not give another number.
MOST_OFF_PATH = 6
# A limit that is further above its measure than this is to be lowered.
SLACK = 1.02


def our_modules(source, known):
    """The modules of ours that a module imports, in functions too, or names by a dotted path, "package.module:name"."""
    found = {name for _, name, _ in test_house.imported(source, known) if name in known}
    if source in [known[name] for name in NAME_ONLY if name in known]:
        return found
    for node in ast.walk(test_house.parsed(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.partition(":")[0] in known:
            found.add(node.value.partition(":")[0])
    return found


def closure(start, sources):
    """The module `start` and all of ours that it imports, by way of others too, with the packages that contain them."""
    seen, waiting = set(), [start]
    while waiting:
        module = waiting.pop()
        if module not in seen and module in sources:
            seen.add(module)
            parts = module.split(".")
            waiting += [".".join(parts[:-1]), *our_modules(sources[module], sources)]
    return seen


def lines(modules, sources):
    return sum(sources[module].count("\n") for module in modules)


def fields(sources):
    """Class -> how many fields it has: annotated names in its body, and attributes that its methods set on `self`."""
    found = {}
    for module, source in sources.items():
        for node in ast.walk(test_house.parsed(source)):
            if isinstance(node, ast.ClassDef):
                own = {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
                own |= {
                    each.attr
                    for each in ast.walk(node)
                    if isinstance(each, ast.Attribute)
                    and isinstance(each.ctx, ast.Store)
                    and ast.unparse(each.value) == "self"
                }
                found[f"{module}.{node.name}"] = len(own)
    return found


def seconds_of_tests():
    text = (pathlib.Path(__file__).parent / "durations.txt").read_text()
    return sum(float(line.split()[0]) for line in text.splitlines())


def reading_path():
    """The modules that docs/architecture.md lists for a reader of the core."""
    page = (pathlib.Path(__file__).parents[1] / "docs" / "architecture.md").read_text().split("## Reading path")[1]
    return ["tfdist." + path.replace("/", ".") for path in re.findall(r"^\| `(\S+)\.py` \|", page, re.MULTILINE)]


@functools.cache
def measured():
    sources = test_house.modules()
    of_classes = fields(sources)
    run = of_classes.pop("tfdist.training.run.Run")
    schema = {name: count for name, count in of_classes.items() if not name.startswith("tfdist.config.schema.")}
    facade = [
        other
        for module, source in sources.items()
        if test_house.package_of(module) == "keras_fit"
        for _, other, _ in test_house.imported(source, sources)
        if test_house.package_of(other) == "training"
    ]
    return {
        "lines in tfdist": lines(sources, sources),
        "lines that tfdist.main imports": lines(closure("tfdist.main", sources), sources),
        "lines that train_step imports": lines(closure("tfdist.training.step.train_step", sources), sources),
        "fields of Run": run,
        "fields of the largest other class": max(schema.values()),
        "private names": sum(map(len, test_house.PRIVATE_NAMES.values())),
        "imports of training by keras_fit": len(facade),
        "seconds of the default tests": round(seconds_of_tests()),
    }


@pytest.mark.parametrize("name", EDGES["limits"])
def test_no_edge_grows_and_limits_follow_what_falls(name):
    found, limit = measured()[name], EDGES["limits"][name]
    assert found <= limit, f"{name}: {found}, and tests/edges.json allows {limit}"
    assert limit <= found * SLACK + 1, f"{name}: {found} now: write that into tests/edges.json for {limit}"


def test_files_of_the_reading_path_import_few_modules_off_it():
    sources, path = test_house.modules(), reading_path()
    assert len(path) > 15
    for module in path:
        found = {name for _, name, _ in test_house.imported(sources[module], sources) if name in sources} - {
            *path,
            module,
        }
        limit = EDGES["off the reading path"].get(module, MOST_OFF_PATH)
        assert len(found) <= limit, f"{module} imports {len(found)} modules that are not on the reading path: {found}"
        assert limit in (len(found), MOST_OFF_PATH), f"{module} imports {len(found)}: write that into tests/edges.json"


def test_main_imports_nothing_that_only_some_runs_need():
    sources = test_house.modules()
    parts = {target.partition(":")[0] for target in schema.PARTS.values()}
    assert len(parts) > 5 and parts <= sources.keys() and not parts & closure("tfdist.main", sources)


def test_all_edges_have_limits():
    assert set(measured()) == set(EDGES["limits"])


def test_closures_follow_functions_and_dotted_paths():
    sources = {
        "tfdist": "",
        "tfdist.a": "",
        "tfdist.a.first": "def late():\n    import tfdist.b\n",
        "tfdist.b": 'SPEC = {"target": "tfdist.c:function"}\n',
        "tfdist.c": "",
        "tfdist.d": "",
    }
    assert closure("tfdist.a.first", sources) == {"tfdist", "tfdist.a", "tfdist.a.first", "tfdist.b", "tfdist.c"}


def test_fields_are_annotations_and_attributes():
    source = "class A:\n    x: int\n    def f(self):\n        self.y, self.x = 1, 2\n        z = self.w\n"
    assert fields({"tfdist.a": source}) == {"tfdist.a.A": 2}
