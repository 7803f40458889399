"""`hocket venv`, and what `make test-all` says of tests whose venv is missing."""

from __future__ import annotations

import ctypes
import functools
import importlib
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hocket.cli import main
from hocket.system.venvs import build
from hocket.system.venvs.table import PINS, VENVS, Venv
from support import parts
from support.parts import ROOT

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
EMPTY = Venv(about="nothing", python=HERE, flag="--env-python", packages=())


def test_no_name_lists_all_and_which_are_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gym").mkdir()
    (tmp_path / "gym" / build.STAMP).touch()
    assert main(["venv", "--folder", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    states = {line.split()[0]: line.split()[2] for line in lines[1 : 1 + len(VENVS)]}
    assert states == {name: "yes" if name == "gym" else "no" for name in VENVS}


def test_an_unknown_name_gets_the_nearest_before_anything_is_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["venv", "gym", "lerobo", "--folder", str(tmp_path)]) == 2
    assert "Did you mean 'lerobot'?" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "told"),
    [(["--all", "gym"], "leave out the names"), (["gym", "--skip", "libero"], "belongs to --all")],
)
def test_words_that_would_be_forgotten_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["venv", *words, "--folder", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_every_row_names_pins_and_is_built_by_its_own_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "CPU_TORCH", tmp_path / "only in a clone")
    for venv in VENVS.values():
        create, *installs = build.commands(venv, Path("venvs/it"), "python", "pins.txt")
        assert create == ["python", "-m", "venv", "--clear", "venvs/it"]
        for command in installs:
            assert command[:4] == ["venvs/it/bin/python", "-m", "pip", "install"]
            assert command[command.index("--constraint") + 1] == "pins.txt"
        assert ("--no-deps" in installs[-1]) == bool(venv.bare)
        assert not any("://" in package for package in (*venv.packages, *venv.bare))


def test_in_a_clone_torch_is_installed_first_and_without_what_only_a_gpu_needs() -> None:
    first = build.commands(VENVS["lerobot"], Path("venvs/it"), "python", "pins.txt")[1]
    assert first[1:] == [str(ROOT / "tools" / "cpu_torch.py"), "venvs/it/bin/python", PINS[0]]
    assert Path(first[1]).exists()
    assert len(build.commands(VENVS["gym"], Path("venvs/it"), "python", "pins.txt")) == 2


@pytest.mark.skipif(not (shutil.which("cc") and shutil.which("readelf")), reason="no C compiler")
def test_a_library_is_loaded_with_a_stand_in_for_one_that_is_not_there(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        cpu_torch = importlib.import_module("cpu_torch")
    finally:
        sys.path.pop(0)
    for name, code in {
        "needed": "int cublasAsk(void) { return 1; } int other(void) { return 2; }",
        "asks": "int cublasAsk(void); int other(void); int (*kept)(void) = other;"
        "int ask(void) { return cublasAsk(); }",
    }.items():
        (tmp_path / f"{name}.c").write_text(code)
    (tmp_path / "versions").write_text("libneeded.so.1 { other; };")
    cc = ["cc", "-shared", "-fPIC", "-Wl,-z,now", f"-L{tmp_path}", f"-Wl,-rpath,{tmp_path}"]
    needed, asks = tmp_path / "libneeded.so.1", tmp_path / "libasks.so"
    script = f"-Wl,--version-script,{tmp_path}/versions"
    run = functools.partial(subprocess.run, check=True)
    run([*cc, "-Wl,-soname,libneeded.so.1", script, "-o", needed, tmp_path / "needed.c"])
    run([*cc, "-o", asks, tmp_path / "asks.c", "-l:libneeded.so.1"])
    needed.unlink()
    with pytest.raises(OSError, match=r"libneeded\.so\.1"):
        ctypes.CDLL(str(asks))
    missing = cpu_torch.lacking(tmp_path)
    assert missing == {"libneeded.so.1": {"libneeded.so.1": {"other"}, "": {"cublasAsk"}}}
    for name, functions in missing.items():
        cpu_torch.make(tmp_path, name, functions)
    assert ctypes.CDLL(str(asks)).ask() == cpu_torch.NO_DEVICE
    assert cpu_torch.lacking(tmp_path) == {}


def test_a_version_that_is_not_found_says_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = replace(EMPTY, python="2.99")
    monkeypatch.setattr(build, "VENVS", {"old": row})
    monkeypatch.setattr("hocket.cli.setup.VENVS", {"old": row})
    assert main(["venv", "old", "--folder", str(tmp_path)]) == 2
    assert "PYTHON299=path/to/python2.99" in capsys.readouterr().err
    assert main(["venv", "--all", "--folder", str(tmp_path)]) == 0
    assert "left out: no Python 2.99" in capsys.readouterr().out
    monkeypatch.setenv("PYTHON299", sys.executable)
    assert main(["venv", "old", "--folder", str(tmp_path)]) == 2
    assert "is not Python 2.99" in capsys.readouterr().err


@pytest.mark.slow
def test_a_venv_is_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "VENVS", {"empty": EMPTY})
    monkeypatch.setattr("hocket.cli.setup.VENVS", {"empty": EMPTY})
    assert main(["venv", "empty", "--folder", str(tmp_path)]) == 0
    assert f"--env-python {tmp_path}/empty/bin/python" in capsys.readouterr().out
    kept = tmp_path / "empty" / "kept"
    kept.touch()
    assert main(["venv", "empty", "--folder", str(tmp_path)]) == 0
    assert "is ready" in capsys.readouterr().out
    (tmp_path / "empty" / build.STAMP).unlink()
    assert main(["venv", "empty", "--folder", str(tmp_path)]) == 0
    assert not kept.exists(), "One without its stamp is built from the start."


@pytest.mark.parametrize(
    ("skip", "reason", "outcome"),
    [
        (None, "gym is missing: hocket venv gym", "skipped"),
        ("", "gym is missing: hocket venv gym", "failed"),
        ("libero, gym", "gym is missing: hocket venv gym", "skipped"),
        ("", "could not import 'ray': No module named 'ray'", "failed"),
        ("", "This machine has GPUs.", "skipped"),
    ],
)
def test_a_part_may_be_missing_where_it_was_said(
    skip: str | None, reason: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(parts.VARIABLE, raising=False)
    if skip is not None:
        monkeypatch.setenv(parts.VARIABLE, skip)
    report: Any = SimpleNamespace(
        skipped=True, outcome="skipped", longrepr=("file.py", 1, f"Skipped: {reason}")
    )
    parts.demand(report)
    assert report.outcome == outcome
    assert (outcome == "failed") == ("leaves its tests out" in str(report.longrepr))
