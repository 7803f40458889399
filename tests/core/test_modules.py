"""What a user names as module:attr or file.py:attr is found, or told in words."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.core import modules, plugins
from hocket.errors import UnimportableError, UnknownNameError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def found(name: str) -> object:
    target = modules.target_of(name)
    assert target is not None
    return modules.attribute(target)


def test_a_file_is_found_by_its_path_and_finds_what_lies_beside_it(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "odd-name.py").write_text("import beside_it\nclass Env:\n    inner = 3\n")
    (folder / "deep" / "beside_it.py").write_text("")
    assert found("deep/odd-name.py:Env.inner") == 3
    assert found("deep/odd-name.py:Env") is found(f"{folder}/deep/odd-name.py:Env")


def test_a_file_that_can_be_imported_is_the_same_module_either_way(folder: Path) -> None:
    (folder / "twice_named.py").write_text("class Env: ...\n")
    assert found("twice_named.py:Env") is found("twice_named:Env")


def test_a_file_never_hides_an_installed_module_of_its_name(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "json.py").write_text("class Env: ...\n")
    assert found("sub/json.py:Env")
    assert hasattr(sys.modules["json"], "dumps")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import no_such_thing\n", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("def broken(:\n", "SyntaxError"),
        ("x = 1\nraise ValueError('too cold')\n", 'mine_here.py", line 2'),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
    ],
)
@pytest.mark.parametrize("name", ["mine_here.py:Env", "mine_here:Env"])
def test_a_module_that_cannot_be_imported_is_told_with_its_line(
    folder: Path, text: str, says: str, name: str
) -> None:
    (folder / "mine_here.py").write_text(text)
    with pytest.raises(UnimportableError) as caught:
        found(name)
    assert says in str(caught.value)
    assert "mine_here.py" in str(caught.value)
    assert "importlib" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere.py:Env", "There is no file 'nowhere.py'"),
        ("here.py:Evn", r"has no attribute 'Evn'\. Did you mean 'Env'\?"),
        ("here.py", "Say which env of here.py is meant, after a colon: here.py:Env"),
        ("here.nothing:Env", "cannot be imported"),
    ],
)
def test_what_is_not_there_is_told(folder: Path, name: str, says: str) -> None:
    (folder / "here.py").write_text("class Env: ...\n")
    with pytest.raises(UnknownNameError, match=says):
        plugins.find("envs", name)
