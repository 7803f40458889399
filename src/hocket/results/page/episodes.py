"""What the page's grid, table of episodes, gallery and player know of a run: its trials as numbered
cells, in planned order, as `hocket watch` tells them of a run that goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hocket.core.data import Array, Outcome
from hocket.errors import HocketError
from hocket.records.chunks import load_chunks
from hocket.records.ledger.episodes import OUTCOMES, Trials, common_rows
from hocket.results.card import LETTERS
from hocket.results.page.document import file_link
from hocket.results.page.videos import poster
from hocket.results.recorded import RecordedRun

PENDING = "."
MOST_CARDS = 48
"""Films in the gallery; of more, failures come first."""
_MOST_BORDERED = 500
"""Filmed episodes whose chunks have borders on the page."""
_MOST_ERRORS = 300
"""Errors that the player shows; alike ones stand together in a part of their own."""
_LONGEST_ERROR = 4000


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
            "borders": self._borders(),
            "labels": {cell: text for cell, text in labels.items() if cell is not None},
            "errors": {cell: (e.error or "")[:_LONGEST_ERROR] for cell, e in told},
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

    def _borders(self) -> dict[int, list[int]]:
        """Steps that filmed episodes had executed at the end of each chunk."""
        filmed = [self.run.trials[cell] for cell in list(self.films)[:_MOST_BORDERED]]
        if not filmed:
            return {}
        try:
            rows = load_chunks(self.run.folder, filmed).to_pydict()
        except HocketError:  # the page says of damaged rows elsewhere
            return {}
        steps: dict[int, list[int]] = {}
        cells = {trial.id: cell for trial, cell in zip(filmed, self.films, strict=False)}
        for trial, number in zip(rows["trial"], rows["steps"], strict=True):
            steps.setdefault(cells[trial], []).append(number)
        return {cell: np.cumsum(some).tolist() for cell, some in steps.items()}
