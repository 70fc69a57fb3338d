"""The shipped configs and networks are found by their names; of the wheel: tests/unit/tools/test_wheel.py."""

from tfdist import configs


def test_a_users_file_comes_before_a_shipped_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = str(configs.FOLDER / "digits.py")
    assert configs.find("configs/digits.py") == configs.find("digits.py") == shipped
    assert configs.find("configs/digits.py:16") == f"{shipped}:16"
    assert configs.find("configs/none.py") == "configs/none.py"
    (tmp_path / "digits.py").touch()
    assert configs.find("digits.py") == "digits.py"
