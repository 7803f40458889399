"""Rooms can be taken out: the rest works, and says what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import hocket
from hocket.rooms import ROOMS
from support.without_rooms import TESTS, WITHOUT

QUICK = ("core", "system", "engine", "workers", "results")
TOY = ["eval", "--env", "toy", "--episodes", "1", "--lanes", "1", "--runtime", "inline"]


class House:
    """A copy of hocket without some of its rooms."""

    def __init__(self, folder: Path, gone: Sequence[str]) -> None:
        own = Path(hocket.__file__).parent
        left_out = {own / room.replace(".", "/") for room in gone}

        def ignore(path: str, names: list[str]) -> list[str]:
            return [n for n in names if n == "__pycache__" or Path(path, n) in left_out]

        shutil.copytree(own, folder / "hocket", ignore=ignore)
        self._path = [str(folder), str(TESTS)]
        self._gone = ",".join(room for room in ROOMS if room in gone)

    def run(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a module of Python."""
        variables = {"PYTHONPATH": os.pathsep.join(self._path), WITHOUT: self._gone}
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            env={**os.environ, **variables},
            cwd=cwd or TESTS.parent,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def passes_the_quick_tests(self) -> None:
        """Run what `make quick` runs, but for what is about a room that is gone."""
        done = self.run(
            *("pytest", "-p", "support.without_rooms", "--numprocesses=2", "--dist=worksteal"),
            *("-m", "not slow and not heavy", *(f"tests/{folder}" for folder in QUICK)),
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        found = re.search(r"(\d+) passed", done.stdout)
        assert found is not None
        assert int(found[1]) > 500


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> House:
    """hocket without any of its rooms."""
    return House(tmp_path_factory.mktemp("bare"), list(ROOMS))


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_the_quick_tests_pass_without_any_room(bare: House) -> None:
    bare.passes_the_quick_tests()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("room", ROOMS)
def test_the_quick_tests_pass_without_each_room(room: str, tmp_path: Path) -> None:
    House(tmp_path, [room]).passes_the_quick_tests()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("arguments", "room"),
    [
        (["train", "--env", "toy"], "train"),
        (["work", "--help"], "machines"),
        (["watch", "runs"], "watch"),
        (["serve", "--policy", "zero"], "serve"),
        (["export", "runs"], "exports"),
        (["collect", "--help"], "exports"),
        ([*TOY, "--policy", "actor"], "train"),
        ([*TOY, "--policy", "sidecar:zero"], "serve"),
        ([*TOY, "--policy", "zero", "--machines", "local:2"], "machines"),
        ([*TOY, "--policy", "zero", "--watch"], "watch"),
        ([*TOY, "--policy", "zero", "--machines", "local:2", "--dry-run"], "machines"),
        ([*TOY, "--policy", "zero", "--watch", "--dry-run"], "watch"),
        ([*TOY, "--policy", "zero", "--reader", "otlp"], "telemetry"),
        ([*TOY, "--policy", "zero", "--reader", "trackio"], "telemetry"),
        ([*TOY[:-1], "modal", "--policy", "zero"], "cloud"),
    ],
)
def test_what_is_missing_is_said_in_words(
    arguments: list[str], room: str, bare: House, tmp_path: Path
) -> None:
    done = bare.run("hocket", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert f"{ROOMS[room]} is not part of this installation" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.heavy
def test_help_doctor_and_a_run_work_without_any_room(bare: House, tmp_path: Path) -> None:
    assert bare.run("hocket", "--help").returncode == 0
    assert bare.run("hocket", "eval", "--help").returncode == 0
    ran = bare.run("hocket", *TOY, "--policy", "zero", "--out", str(tmp_path / "run"))
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "run" / "report.html").is_file()
    found = bare.run("hocket", "doctor")
    assert "Traceback" not in found.stderr
    for use in ROOMS.values():
        assert use.partition(" (")[0] in found.stdout
