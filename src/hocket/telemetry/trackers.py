"""Readers that log a run to a tracker of experiments: `--reader wandb=PROJECT`, `trackio`, `mlflow`
and `tensorboard`.

Of training they log every curve over env steps. Of an evaluation or a collection they log success,
its n and errors over the episodes that have ended; and once it has ended the rates that the report
gives, each with n and interval, films of failures, and the run's card. A tracker that fails is told
of, and costs the run nothing.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable

from hocket.core.contracts.recorder import Followed
from hocket.core.data import Episode, Outcome
from hocket.core.events import EpisodesEnded, Event, Measured, RunStarted
from hocket.errors import UsageError
from hocket.results.recorded import RecordedRun, open_recorded
from hocket.results.scores import Score
from hocket.runs.checks.card import write_card
from hocket.system.text import printable
from hocket.telemetry.boards import Board, Mlflow, TensorBoard, Trackio, Wandb

EPISODES = "episodes"
"""The axis of an evaluation's curves."""
_POINTS = 200
"""Points that a curve of an evaluation has at most."""
_FILMS = 8
"""Films of failures that are logged."""


class Tracker:
    """Logs a run to a board. Closing twice is safe."""

    def __init__(self, make: Callable[[str, Followed], Board], where: str, run: Followed) -> None:
        self._run = run
        self._is_training = "algo" in run.config
        try:
            self._board: Board | None = make(where, run)
        except Exception as exc:  # of the tracker's own, which have no common root
            raise UsageError(f"A tracker of --reader cannot begin: {_told(exc)}") from exc
        self._ended: Counter[Outcome] = Counter()
        self._told = self._every = 0

    def on(self, event: Event) -> None:
        if isinstance(event, Measured):
            values = dict(event.values)
            self._tell(lambda board: board.curve(values, "env_steps", event.env_steps))
        elif self._is_training:
            return  # its episodes are counted in what is measured
        elif isinstance(event, RunStarted):
            # A collection goes on in rounds, and each says anew what had ended before it.
            self._every = len(event.trials) // _POINTS
            self._ended.clear()
            self._count(event.done)
        elif isinstance(event, EpisodesEnded):
            self._count(event.episodes)

    def close(self) -> None:
        board = self._board
        if board is None:
            return
        if self._ended:
            self._tell(self._conclude)
        self._tell(lambda board: board.close())
        self._board = None

    def _count(self, episodes: Iterable[Episode]) -> None:
        self._ended.update(episode.outcome for episode in episodes)
        ended = self._ended.total()
        if ended > self._told + self._every:
            self._told = ended
            self._tell(lambda board: board.curve(_so_far(self._ended), EPISODES, ended))

    def _conclude(self, board: Board) -> None:
        """Log what the folder's report says, which counts every episode that has ended."""
        run = open_recorded(self._run.folder)
        if not run.report.episodes:
            return
        board.result(_results(run))
        for name, film in _failures(run):
            board.film(name, run.folder / film)
        board.card(write_card(run.folder, run.folder)[:2])

    def _tell(self, say: Callable[[Board], None]) -> None:
        if self._board is None:
            return
        try:
            say(self._board)
        except Exception as exc:  # noqa: BLE001 - of several libraries, without a common root
            self._board = None
            sys.stderr.write(f"note: a tracker failed, and is told no more: {_told(exc)}\n")


def _told(exc: Exception) -> str:
    return printable(f"{type(exc).__name__}: {exc}")


def _so_far(ended: Counter[Outcome]) -> dict[str, float]:
    """Success of the episodes that have ended, where any could succeed, with its n; and errors."""
    n = ended[Outcome.SUCCESS] + ended[Outcome.FAILURE]
    rate = {"success/rate": ended[Outcome.SUCCESS] / n} if n else {}
    return {**rate, "success/n": n, "errors": ended[Outcome.ERROR]}


def _results(run: RecordedRun) -> dict[str, float]:
    """The report's rates and mean returns, of all together and of each task."""
    report = run.report
    found = _numbers("overall", report.overall)
    for score in report.tasks:
        name = score.task or ""
        found |= _numbers(f"{score.suite}/{name}" if len(report.suites) > 1 else name, score)
    return found


def _numbers(name: str, score: Score) -> dict[str, float]:
    told = score.to_json()
    head = f"result/{name}"
    found = {f"{head}/{key}": told[key] for key in ("rate", "n", "errors", "mean_return")}
    low, high = told["interval"] or (None, None)
    found |= {f"{head}/low": low, f"{head}/high": high}
    return {key: value for key, value in found.items() if value is not None}


def _failures(run: RecordedRun) -> list[tuple[str, str]]:
    """Films of failures, in planned order, each with its name."""
    failed = (e for e in run.with_folders(run.report.episodes) if e.outcome is Outcome.FAILURE)
    films = ((f"failures/{e.trial.id}", film) for e in failed for film in run.videos(e)[:1])
    return [film for film, _ in zip(films, range(_FILMS), strict=False)]


wandb = functools.partial(Tracker, Wandb)
trackio = functools.partial(Tracker, Trackio)
mlflow = functools.partial(Tracker, Mlflow)
tensorboard = functools.partial(Tracker, TensorBoard)
