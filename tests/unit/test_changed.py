"""`pytest --changed`: which test files the changed files can reach."""

import subprocess

import changed

FILES = {
    "tfdist/__init__.py": 'FUNCTIONS = {"fit": "tfdist.shell.api"}\n',
    "tfdist/core/__init__.py": "",
    "tfdist/core/step.py": "",
    "tfdist/core/loop.py": '"""See docs/page.md."""\ndef late():\n    from tfdist.core import step\n',
    "tfdist/config/schema.py": 'DEFAULT = "tfdist.core.step:function"\n',
    "tfdist/shell/api.py": "from tfdist.core.loop import late\n",
    "tests/conftest.py": "import lab\n",
    "tests/support/lab.py": "",
    "tests/support/runs.py": 'COMMAND = ["-m", "tfdist.core.loop"]\n',
    "tests/unit/test_step.py": "from tfdist.core import step\n",
    "tests/unit/test_schema.py": "from tfdist.config import schema\n",
    "tests/unit/test_fit.py": "import tfdist\ntfdist.fit()\n",
    "tests/workers/test_run.py": 'import runs\nCONFIG = "--config=tests/configs/a.py"\n',
    "tests/configs/a.py": 'MODEL = {"target": "tests.support.lab:linear"}\n',
    "tests/docs/test_page.py": 'TEXT = (ROOT / "docs" / "page.md").read_text()\n',
    "docs/page.md": "",
}


def reached(*files):
    """Test file -> distance, by the last part of its name."""
    found = changed.distances(FILES, files)
    return {path[:-3].rpartition("test_")[2]: count for path, count in found.items() if "/test_" in path}


def test_imports_commands_and_the_front_door_are_followed_and_defaults_are_not():
    assert reached("tfdist/core/step.py") == {"step": 1, "run": 3, "fit": 3}
    assert reached("tfdist/config/schema.py") == {"schema": 1}


def test_configs_pages_and_what_conftest_imports_are_followed():
    assert reached("docs/page.md") == {"page": 1}
    assert reached("tests/configs/a.py") == {"run": 1}
    assert reached("tests/support/lab.py") == dict.fromkeys(("step", "schema", "fit", "run", "page"), 2)
    assert reached("tests/unit/test_fit.py", "README.md") == {"fit": 0}


def test_the_nearest_files_that_fit_are_chosen_and_changed_tests_always():
    tests, seconds = {"a": 1, "b": 1, "c": 2, "d": 0, "e": 3}, {"a": 30.0, "b": 20.0, "c": 20.0, "d": 40.0}
    assert changed.nearest(tests, seconds, 60.0) == ["d", "b"]
    assert changed.nearest(tests, seconds, 100.0) == ["d", "b", "a", "e"]
    assert changed.nearest({"d": 0}, seconds, 10.0) == ["d"]


def test_committed_edited_and_new_files_are_changed(tmp_path):
    def git(*words):
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b", *words], check=True)

    def write(text, *names):
        for name in names:
            (tmp_path / f"{name}.py").write_text(text)

    git("init", "-q", "-b", "main")
    write("a = 1\n", "old", "edited", "committed")
    git("add", ".")
    git("commit", "-qm", "first")
    git("checkout", "-qb", "mine")
    write("a = 2\n", "committed")
    git("commit", "-qam", "second")
    write("a = 2\n", "edited", "new")
    assert changed.changed_files(tmp_path) == {"committed.py", "edited.py", "new.py"}
    assert changed.sources(tmp_path)["old.py"] == "a = 1\n" != changed.sources(tmp_path)["new.py"]
