"""Every verb that runs envs does so wherever workers can live."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.commands import run_here
from support.podman import IMAGE, mounts, podman

__all__ = ["podman"]

WHERE = {
    "loopback": ("--runtime", "loopback"),
    "podman": (
        *("--runtime", f"podman:{IMAGE}", "--runtime.python", sys.executable),
        *("--runtime.mounts", *mounts()),
    ),
}
TOY = ("--env", "toy:image", "--policy", "random")


def check(folder: Path, where: tuple[str, ...]) -> None:
    done = run_here(folder, "check", *TOY, *where)
    assert done.returncode == 0, done.stderr


def evaluate_film_and_replay(folder: Path, where: tuple[str, ...]) -> None:
    done = run_here(folder, "eval", *TOY, "--episodes", "2", "--lanes", "1", "--out", "a", *where)
    assert done.returncode == 0, done.stderr
    assert run_here(folder, "video", "a", "--all").returncode == 0  # where the run's workers were
    assert len(list((folder / "a").rglob("[!.]*.mp4"))) == 4
    done = run_here(folder, "replay", "a", "image/1")
    assert done.returncode == 0, done.stderr + done.stdout


def film_and_replay_what_ran_here(folder: Path, where: tuple[str, ...]) -> None:
    done = run_here(folder, "eval", *TOY, "--episodes", "1", "--video", "none", "--out", "a")
    assert done.returncode == 0, done.stderr
    assert run_here(folder, "video", "a", "--all", *where).returncode == 0
    assert len(list((folder / "a").rglob("[!.]*.mp4"))) == 2
    assert run_here(folder, "replay", "a", "image/0", "--with-policy", *where).returncode == 0


def collect(folder: Path, where: tuple[str, ...]) -> None:
    words = ("--episodes", "2", "--failures", "--to", "hdf5")
    done = run_here(folder, "collect", "data.hdf5", *TOY, *words, *where)
    assert done.returncode == 0, done.stderr
    assert (folder / "data.hdf5").stat().st_size > 0


def train(folder: Path, where: tuple[str, ...]) -> None:
    words = ("--env", "gym:Pendulum-v1", "--policy", "actor", "--policy.chunk-length", "2")
    short = ("--steps", "64", "--batch", "8", "--eval-every", "0", "--reward", "env")
    done = run_here(folder, "train", *words, *short, "--lanes", "2", "--out", "t", *where)
    assert done.returncode == 0, done.stderr
    assert (folder / "t" / "policy").is_dir() or list((folder / "t").rglob("policy.json"))


DEEDS = (check, evaluate_film_and_replay, film_and_replay_what_ran_here, collect, train)


@pytest.mark.slow
def test_a_run_behind_a_websocket_has_its_records_here(tmp_path: Path) -> None:
    words = ("--episodes", "1", "--video", "none", "--out", "a")
    done = run_here(tmp_path, "eval", *TOY, *words, *WHERE["loopback"])
    assert done.returncode == 0, done.stderr
    assert run_here(tmp_path, "replay", "a", "image/0", "--runtime", "inline").returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
@pytest.mark.parametrize("name", WHERE)
def test_every_verb_runs_there(
    name: str,
    deed: Callable[[Path, tuple[str, ...]], None],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if name == "podman":
        request.getfixturevalue("podman")
    deed(tmp_path, WHERE[name])
