"""A recorded run, and those of its episodes that are exported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hocket.core.data import Episode, Outcome
from hocket.core.plugins import did_you_mean
from hocket.errors import RunFolderError, UnknownNameError, UsageError
from hocket.records.folder import RunFolder
from hocket.records.ledger import LedgerView
from hocket.results.recorded import RecordedRun, open_recorded

_TRIES = 10
_BATCH = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which episodes are exported."""

    outcomes: tuple[str, ...] = ()
    """None means every outcome but errors."""
    tasks: tuple[str, ...] = ()
    """None means every task."""
    first: int | None = None
    """Of each task the first so many that were chosen, by seed; None means all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRun:
    """A run and the episodes that were chosen, in planned order."""

    recorded: RecordedRun
    episodes: Sequence[Episode]

    @property
    def folder(self) -> RunFolder:
        return RunFolder.at(self.recorded.folder)

    @property
    def config(self) -> dict[str, Any]:
        """Of the run, plain."""
        return dict(self.recorded.report.config)

    @property
    def unfinished(self) -> int:
        """Planned trials that have no episode."""
        return len(self.recorded.trials) - len(self.recorded.report.episodes)


def open_chosen(place: Path, choice: Choice) -> ChosenRun:
    """Read a run folder; a choice that leaves nothing is refused."""
    recorded = open_recorded(place)
    wanted = _outcomes(choice.outcomes)
    tasks = {trial.task for trial in recorded.trials}
    for task in choice.tasks:
        if task not in tasks:
            raise UnknownNameError(
                f"The run has no task {task!r}.{did_you_mean(task, tasks)} It has: "
                f"{', '.join(sorted(tasks))}."
            )
    episodes = [
        episode
        for episode in recorded.report.episodes
        if episode.outcome in wanted and (not choice.tasks or episode.trial.task in choice.tasks)
    ]
    if not episodes:
        raise UsageError(
            f"Of the {len(recorded.report.episodes)} episodes in {str(place)!r} none is "
            f"{' or '.join(outcome.value for outcome in wanted)}"
            f"{' in these tasks' if choice.tasks else ''}: there is nothing to export."
        )
    return ChosenRun(recorded=recorded, episodes=_first(episodes, choice.first))


def _first(episodes: Sequence[Episode], count: int | None) -> list[Episode]:
    """The first of each task by seed, in planned order."""
    if count is None:
        return list(episodes)
    by_task: dict[tuple[str, str], list[Episode]] = {}
    for episode in episodes:
        by_task.setdefault((episode.trial.suite, episode.trial.task), []).append(episode)
    kept = {
        episode.trial.id
        for some in by_task.values()
        for episode in sorted(some, key=lambda e: (e.trial.seed, e.trial.repeat))[:count]
    }
    return [episode for episode in episodes if episode.trial.id in kept]


def read_table(folder: RunFolder, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a table, a few thousand in memory at a time, each episode's together. Also while
    the run goes on: a file that is merged away meanwhile stays open here."""
    with ExitStack() as stack:
        for file in _open_segments(stack, folder, table):
            yield from file.iter_batches(_BATCH, columns=list(columns), use_threads=False)


def _open_segments(stack: ExitStack, folder: RunFolder, table: str) -> list[pq.ParquetFile]:
    with LedgerView.open(folder) as ledger:
        for _ in range(_TRIES):
            with ExitStack() as opened:
                try:
                    files = [
                        opened.enter_context(pq.ParquetFile(folder.root / segment.name))
                        for segment in ledger.segments(table)
                    ]
                except FileNotFoundError:
                    continue  # merged since it was listed
                stack.push(opened.pop_all())
                return files
    raise RunFolderError(
        f"A segment that the ledger names is missing from {str(folder.table(table))!r}. Restore "
        f"it from a copy of the run."
    )


def _outcomes(names: Sequence[str]) -> list[Outcome]:
    if not names:
        return [outcome for outcome in Outcome if outcome is not Outcome.ERROR]
    known = {outcome.value: outcome for outcome in Outcome}
    for name in names:
        if name not in known:
            raise UsageError(
                f"No outcome is called {name!r}.{did_you_mean(name, known)} They are: "
                f"{', '.join(known)}."
            )
    return [known[name] for name in names]
