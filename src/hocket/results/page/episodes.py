"""What the page's grid, table of episodes, gallery and player know of a run: its trials as numbered
cells, in planned order, as `hocket watch` tells them of a run that goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hocket.core.data import Array, Episode, Outcome
from hocket.records.evidence import KILLED
from hocket.records.folder import RunFolder
from hocket.records.ledger.episodes import OUTCOMES, Trials, common_rows
from hocket.results.card import LETTERS
from hocket.results.page.document import file_link
from hocket.results.page.faults import told_of
from hocket.results.page.look import Look, looks_into
from hocket.results.page.videos import poster
from hocket.results.recorded import RecordedRun

PENDING = "."
MOST_CARDS = 48
"""Films in the gallery; of more, failures come first."""
_MOST_LOOKS = 200
"""Attempts that a report can look inside of."""
_MOST_SEARCHED = 20_000
"""Trials of a run whose steps are searched for them; `hocket watch` looks inside of any."""
_FAILED = (Outcome.ERROR, Outcome.FAILURE)
_MOST_ERRORS = 300
"""Errors that the player shows; alike ones stand together in a part of their own."""


def plan_json(trials: Trials) -> dict[str, Any]:
    """Trials as pages are told of them; where they are planned seed by seed, as they mostly are, in
    three numbers."""
    found: dict[str, Any] = {"tasks": list(trials.kinds), "n": len(trials)}
    if trials.is_regular:
        return {**found, "first": int(trials.seed[0]) if len(trials) else 0}
    repeated = zip(trials.seed.tolist(), trials.repeat.tolist(), strict=True)
    seeds = [seed if not repeat else f"{seed}.{repeat}" for seed, repeat in repeated]
    return {**found, "task": trials.kind.tolist(), "seed": seeds}


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsOfRun:
    """A run's trials as cells, with the films of each."""

    run: RecordedRun
    films: Mapping[int, list[str]]
    """The videos of an episode, relative to the folder, failures first."""

    @classmethod
    def of(cls, run: RecordedRun) -> CellsOfRun:
        kept = run.with_folders(run.report.episodes)
        first = sorted(kept, key=lambda e: e.outcome is not Outcome.FAILURE)
        filmed = {run.trials.row(e.trial): run.videos(e) for e in first}
        films = {cell: some for cell, some in filmed.items() if some and cell is not None}
        return cls(run=run, films=films)

    def to_json(self) -> dict[str, Any]:
        """All but the columns."""
        run, ended = self.run, self.run.report.episodes
        letters, where = np.array([LETTERS[each] for each in OUTCOMES], "S1"), self._where()
        found = np.full(len(run.trials), PENDING, "S1")
        found[where] = letters[ended.columns["outcome"]]
        outcomes = found.tobytes().decode()
        wrong = ended.rows(Outcome.ERROR)[:_MOST_ERRORS]
        told = zip(where[wrong].tolist(), ended.at(wrong), strict=True)
        labels = {run.trials.find(trial): text for trial, text in run.labels.items()}
        counts = Counter(outcomes)
        done = counts.total() - counts.pop(PENDING, 0)
        return {
            "kind": "snapshot",
            "head": {"alive": False, "counts": counts, "done": done, "planned": len(outcomes)},
            "plan": plan_json(run.trials),
            "outcomes": outcomes,
            "films": {
                cell: [file_link(file) for file in some] for cell, some in self.films.items()
            },
            "feed": self._gallery(),
            "lost": self.lost(),
            "labels": {cell: text for cell, text in labels.items() if cell is not None},
            "errors": {cell: told_of(e.error or "") for cell, e in told},
            "diverged": where[ended.columns["diverged"]].tolist(),
        }

    def columns(self) -> Iterator[tuple[str, list[Any]]]:
        """What else is known of each episode, a column after the other; None where a trial has no
        episode yet."""
        known, where = self.run.report.episodes.columns, self._where()
        for name in ("steps", "reward", "chunks", "seconds", "attempt"):
            values = known["total_reward" if name == "reward" else name].tolist()
            if name == "reward":
                values = [float(f"{reward:.6g}") for reward in values]
            elif name == "seconds":
                values = [round(seconds, 1) for seconds in values]
            column = np.full(len(self.run.trials), None, object)
            column[where] = values
            yield name, column.tolist()

    def _where(self) -> Array:
        """The cell of each episode that has ended."""
        return common_rows(self.run.report.episodes.trials, self.run.trials)[1]

    def _gallery(self) -> list[dict[str, Any]]:
        """The episodes whose films have a picture on the page."""
        items, room = [], MOST_CARDS
        for cell, films in self.films.items():
            if room > 0:
                room -= len(films)
                items.append(
                    {"cell": cell, "posters": [poster(self.run.folder / f) for f in films]}
                )
        return items[::-1]  # as they come: the page shows the last one first

    def lost(self) -> dict[int, list[dict[str, Any]]]:
        """The attempts at each trial that were lost, as far as the page lists them."""
        films = {(e.trial, e.attempt): e.files for e in self.run.evidence}
        hits = [(each.trial, each.attempt, each.error) for each in self.run.failures]
        hits += [(e.trial, e.attempt, e.error) for e in self.run.evidence if e.error == KILLED]
        # Those that left something come before those that left a message.
        hits.sort(key=lambda hit: hit[:2] not in films)
        found: dict[int, list[dict[str, Any]]] = {}
        for trial, attempt, error in hits[:_MOST_ERRORS]:
            if (cell := self.run.trials.row(trial)) is not None:
                kept = [file for file in films.get((trial, attempt), ()) if file.endswith(".mp4")]
                links = [file_link(file) for file in kept]
                told = {"attempt": attempt, "films": links, **told_of(error)}
                found.setdefault(cell, []).append(told)
        return {cell: sorted(some, key=lambda one: one["attempt"]) for cell, some in found.items()}

    def looks(self) -> Iterator[tuple[str, Look]]:
        """What is inside of attempts, by cell and number: of those that were lost, that were filmed
        or that failed, and of others, as many as there is room for."""
        ended, run = self.run.report.episodes, self.run
        if not RunFolder.at(run.folder).ledger.exists() or len(run.trials) > _MOST_SEARCHED:
            return
        filmed = (run.trials[cell] for cell in self.films)
        worst = (ended.at(ended.rows(kind)[:_MOST_LOOKS]) for kind in (*_FAILED, *OUTCOMES))
        trials = dict.fromkeys([*filmed, *(episode.trial for some in worst for episode in some)])
        counted = {(e.trial, e.attempt): e for e in map(ended.by_trial.__getitem__, trials)}
        made = dict.fromkeys([*((e.trial, e.attempt) for e in run.evidence), *counted])
        for one, look in looks_into(run.folder, list(made)[:_MOST_LOOKS]):
            if (episode := counted.get(one)) is not None:
                look["told"] = told_by(episode)
            yield f"{self.run.trials.row(one[0])}-{one[1]}", look


def told_by(episode: Episode) -> dict[str, Any]:
    """What an env told of an episode at its end, and what the user is to be told of it."""
    remarks = list(episode.remarks)
    return {"progress": episode.progress, "told": dict(episode.told), "remarks": remarks}
