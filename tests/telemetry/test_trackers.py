"""Trackers are told the curves of training, and what came of an evaluation: with a stand-in for
quick tests, and with the packages themselves, which keep everything here."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.core.contracts.recorder import Followed
from hocket.core.data import Outcome
from hocket.core.events import Measured, RunStarted
from hocket.errors import UsageError
from hocket.telemetry.trackers import Tracker
from support.commands import command
from support.processes import DEADLINE_S

FILMED = {"image_size": 64}
ALLOWED = {"MLFLOW_ALLOW_FILE_STORE": "true"}
"""MLflow wants a server or a database, unless this is set."""


class Told:
    """A board that keeps what it is told."""

    def __init__(self, where: str, run: Followed) -> None:
        self.where, self.run = where, run
        self.curves: list[tuple[Mapping[str, float], str, int]] = []
        self.results: dict[str, float] = {}
        self.films: dict[str, Path] = {}
        self.cards: list[str] = []
        self.closed = 0

    def curve(self, values: Mapping[str, float], axis: str, at: int) -> None:
        self.curves.append((values, axis, at))

    def result(self, values: Mapping[str, float]) -> None:
        self.results |= values

    def film(self, name: str, film: Path) -> None:
        assert film.is_file()
        self.films[name] = film

    def card(self, files: Sequence[Path]) -> None:
        self.cards += [file.name for file in files if file.is_file()]

    def close(self) -> None:
        self.closed += 1


def tracker(board: Told) -> Tracker:
    return Tracker(lambda *_: board, board.where, board.run)


def test_the_curves_of_training_are_told_at_their_env_steps() -> None:
    board = Told("mine", Followed(folder=Path("runs/x"), config={"algo": "ppo"}))
    reader = tracker(board)
    reader.on(Measured(env_steps=40, values={"train/return": 1.5}))
    reader.close()
    reader.close()
    assert board.curves == [({"train/return": 1.5}, "env_steps", 40)]
    assert (board.closed, board.results) == (1, {})


def test_an_evaluation_is_told_with_its_n_its_films_of_failures_and_its_card(
    tmp_path: Path,
) -> None:
    board = Told("", Followed(folder=tmp_path / "run", config={}))
    reader = tracker(board)
    report = hocket.evaluate(
        env="toy:image",
        policy="zero",
        episodes=3,
        lanes=2,
        out=tmp_path / "run",
        video="all",
        env_config=FILMED,
        readers=[reader],
    )
    reader.close()
    values, axis, at = board.curves[-1]
    assert (axis, at) == ("episodes", 3)
    overall = report.overall.success
    assert values == {"success/rate": overall.value, "success/n": 3, "errors": 0}
    assert overall.interval is not None
    assert board.results["result/overall/rate"] == overall.value
    assert board.results["result/overall/n"] == 3
    assert board.results["result/overall/high"] == overall.interval.high
    failed = [e.trial.id for e in report.episodes if e.outcome is Outcome.FAILURE]
    assert failed
    assert list(board.films) == [f"failures/{trial}" for trial in failed]
    assert board.cards == ["card.json", "card.md"]


def test_what_had_ended_before_a_round_is_counted_once(tmp_path: Path) -> None:
    board = Told("", Followed(folder=tmp_path, config={}))
    reader = tracker(board)
    done = list(hocket.evaluate(env="toy:count", policy="scripted", episodes=3).episodes)
    for _ in range(2):
        reader.on(
            RunStarted(
                trials=[episode.trial for episode in done],
                done=done,
                lanes=1,
                cores=1,
                policy=hocket.PolicySpec(chunk_length=1),
            )
        )
    values, _, at = board.curves[-1]
    assert (at, values["success/n"]) == (3, 3)


def test_a_tracker_that_fails_costs_the_run_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(Told):
        def curve(self, values: Mapping[str, float], axis: str, at: int) -> None:
            raise ConnectionError("the tracker is away")

    board = Broken("", Followed(folder=tmp_path / "run", config={}))
    reader = tracker(board)
    report = hocket.evaluate(
        env="toy", policy="scripted", episodes=3, out=tmp_path / "run", readers=[reader]
    )
    reader.close()
    assert report.complete
    assert capsys.readouterr().err.count("told no more: ConnectionError: the tracker is away") == 1


def test_a_tracker_that_cannot_begin_is_refused_in_a_sentence(tmp_path: Path) -> None:
    def away(*_: object) -> Told:
        raise ConnectionError("nobody listens")

    with pytest.raises(UsageError, match="cannot begin: ConnectionError: nobody listens"):
        Tracker(away, "mine", Followed(folder=tmp_path, config={}))


def run_with(reader: str, folder: Path, **variables: str) -> int:
    """Evaluate with a tracker's own package; returns how many of the five episodes failed."""
    flags = ["--env", "toy:image", "--env.image-size", "64", "--policy", "zero", "--episodes", "5"]
    words = command("eval", *flags, "--video", "all", "--reader", reader, "--out", "run")
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "told no more" not in done.stderr, done.stderr
    report = json.loads((folder / "run" / "report.json").read_text())
    failed = sum(episode["outcome"] == "failure" for episode in report["episodes"])
    assert failed
    return failed


@pytest.mark.slow
def test_wandb_keeps_a_run_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    failed = run_with("wandb=mine", tmp_path, WANDB_MODE="offline", WANDB_DIR=str(tmp_path))
    (kept,) = tmp_path.glob("wandb/offline-run-*")
    assert list(kept.glob("*.wandb"))
    films = [path.name for path in kept.rglob("*.mp4")]
    assert len(films) == failed


@pytest.mark.slow
def test_trackio_keeps_a_run_in_its_own_files(tmp_path: Path) -> None:
    if importlib.util.find_spec("trackio") is None:
        # It wants an older websockets than the pinned one.
        pytest.skip("trackio takes an interpreter of its own: pip install -e '.[trackio]' pytest")
    failed = run_with("trackio=mine", tmp_path, TRACKIO_DIR=str(tmp_path / "kept"))
    (file,) = (tmp_path / "kept").glob("mine*.db")
    with sqlite3.connect(file) as kept:
        rows = [json.loads(row[0]) for row in kept.execute("SELECT metrics FROM metrics")]
    values: dict[str, Any] = {key: value for row in rows for key, value in row.items()}
    assert values["result/overall/n"] == 5
    assert len([key for key in values if key.startswith("failures/")]) == failed


@pytest.mark.slow
def test_mlflow_keeps_a_run_in_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    home = tmp_path / "mlruns"
    failed = run_with("mlflow=mine", tmp_path, MLFLOW_TRACKING_URI=home.as_uri(), **ALLOWED)
    rate = next(home.rglob("metrics/result/overall/n"))
    assert float(rate.read_text().split()[1]) == 5
    assert {path.name for path in home.rglob("artifacts/card/*")} == {"card.json", "card.md"}
    assert len(list(home.rglob("artifacts/failures/**/*.mp4"))) == failed


@pytest.mark.heavy
def test_tensorboard_keeps_a_run_and_strips_of_its_films(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    failed = run_with("tensorboard", tmp_path)
    kept = reading.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    kept.Reload()
    assert kept.Scalars("result/overall/n")[0].value == 5
    assert len([tag for tag in kept.Tags()["images"] if tag.startswith("failures/")]) == failed
