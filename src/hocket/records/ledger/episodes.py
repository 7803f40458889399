"""Trials and episodes by the hundred thousand, as columns: some sixty bytes each, beside the texts
that an episode has. One becomes a Trial or an Episode when it is asked for."""

from __future__ import annotations

import functools
import itertools
import json
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hocket.core.data import Array, Episode, Outcome, Trial
from hocket.errors import RunFolderError

OUTCOMES = tuple(Outcome)
"""The column `outcome` holds indices of these."""
_CODES = {outcome.value: code for code, outcome in enumerate(OUTCOMES)}
_KINDS = {
    "attempt": np.int32, "outcome": np.int8, "steps": np.int64, "total_reward": np.float64,
    "terminated": np.bool_, "truncated": np.bool_, "chunks": np.int32, "seconds": np.float64,
    "progress": np.float64, "diverged": np.bool_,
}  # fmt: skip
_TEXTS = ("error", "files", "told", "remarks")
COLUMNS = (*_KINDS, *_TEXTS)
"""What `Episodes` is made of, beside the trials: columns of a ledger's table."""
NUMBERS = COLUMNS[:4]
"""The first of them, which are all that scores and comparisons need."""
_EMPTY: dict[str, Any] = {"[]": (), "{}": {}, "null": None}
BATCH = 8192
"""How many rows are objects at a time."""
_PARTS = 8
_SHORT = 150
"""Bytes of a task's name to which any numbers can be added, and no folder's name is cut."""


class Trials(Sequence[Trial]):
    """Trials, in order."""

    def __init__(self, kinds: Sequence[tuple[str, str]], kind: Array, seed: Array, repeat: Array):
        self.kinds = kinds
        """Suite and task of each kind of trial, in the order in which they first appear."""
        self.kind, self.seed, self.repeat = kind, seed, repeat

    @classmethod
    def of(cls, trials: Iterable[Trial]) -> Trials:
        return gathered((*trial, None) for trial in trials)[0]

    def taken(self, rows: Array | slice) -> Trials:
        """Some of them."""
        return Trials(self.kinds, self.kind[rows], self.seed[rows], self.repeat[rows])

    def __len__(self) -> int:
        return len(self.kind)

    def __iter__(self) -> Iterator[Trial]:
        columns = (each.tolist() for each in (self.kind, self.seed, self.repeat))
        for kind, seed, repeat in zip(*columns, strict=True):
            suite, task = self.kinds[kind]
            yield Trial(suite, task, seed, repeat)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(self.taken(np.arange(len(self))[index]))
        suite, task = self.kinds[self.kind[index]]
        return Trial(suite, task, int(self.seed[index]), int(self.repeat[index]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trials):
            return isinstance(other, Sequence) and list(self) == list(other)
        return list(self.kinds) == list(other.kinds) and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("kind", "seed", "repeat")
        )

    __hash__ = None  # type: ignore[assignment]

    def row(self, trial: Trial) -> int | None:
        """The place of a trial. Those of a plan seed by seed are counted: a million would take a
        hundred megabytes."""
        if not self.is_regular:
            return self._rows.get(trial)
        try:
            turn = self.kinds.index((trial.suite, trial.task))
        except ValueError:
            return None
        row = (trial.seed - int(self.seed[0])) * len(self.kinds) + turn
        return row if 0 <= row < len(self) and not trial.repeat else None

    def find(self, trial: str) -> int | None:
        """The place of a trial, by its id."""
        return self._ids.get(trial)

    @functools.cached_property
    def _rows(self) -> dict[Trial, int]:
        return {trial: row for row, trial in enumerate(self)}

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {trial.id: row for row, trial in enumerate(self)}

    @functools.cached_property
    def is_regular(self) -> bool:
        """True if every task has its trials seed by seed, in turn, as most plans have."""
        turn, count = np.arange(len(self)), max(1, len(self.kinds))
        seeds = (self.seed[:1] if len(self) else 0) + turn // count
        alike = (self.kind == turn % count).all() and (self.seed == seeds).all()
        return bool(alike and not self.repeat.any())


class Episodes(Sequence[Episode]):
    """Episodes, in the order of their trials."""

    def __init__(
        self, trials: Trials, columns: dict[str, Array], texts: list[list[str]], starts: list[int]
    ) -> None:
        self.trials = trials
        self.columns = columns
        """By the names of COLUMNS, without those of texts; `places` are rows of the plan."""
        self.texts, self.starts = texts, starts
        """For each batch, the values of each of _TEXTS as lines of JSON; and its first row."""

    @classmethod
    def of(cls, episodes: Iterable[Episode]) -> Episodes:
        if isinstance(episodes, cls):
            return episodes
        return gathered((*each.trial, *row_of(each)) for each in episodes)[1]

    def __len__(self) -> int:
        return len(self.trials)

    def __iter__(self) -> Iterator[Episode]:
        for start, end in itertools.pairwise([*self.starts, len(self)]):
            yield from self.at(range(start, end))

    def __getitem__(self, index: Any) -> Any:
        found = range(len(self))[index]
        return self.at([found])[0] if isinstance(found, int) else self.at(found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def at(self, rows: Iterable[int]) -> list[Episode]:
        """The episodes in these rows, which ascend."""
        found: list[Episode] = []
        batch = itertools.groupby(rows, lambda row: bisect_right(self.starts, row) - 1)
        for number, some in batch:
            wanted = np.fromiter(some, np.int64)
            columns = [self.columns[name][wanted].tolist() for name in _KINDS]
            lines = [text.split("\n") for text in self.texts[number]]
            for row, trial, *values in zip(
                (wanted - self.starts[number]).tolist(),
                self.trials.taken(wanted),
                *columns,
                strict=True,
            ):
                attempt, outcome, steps, reward, *ends, diverged = values
                terminated, truncated, chunks, seconds, progress = ends
                error, files, told, remarks = (value_of(texts[row]) for texts in lines)
                found.append(
                    Episode(
                        trial, attempt, OUTCOMES[outcome], steps, reward, terminated, truncated,
                        chunks, error, seconds, tuple(files),
                        None if math.isnan(progress) else progress, told, tuple(remarks), diverged,
                    )
                )  # fmt: skip
        return found

    @functools.cached_property
    def by_trial(self) -> dict[Trial, Episode]:
        """All of them as objects, by trial."""
        return {episode.trial: episode for episode in self}

    def rows(self, *outcomes: Outcome) -> list[int]:
        """The rows with these outcomes."""
        codes = [_CODES[outcome.value] for outcome in outcomes]
        found: list[int] = np.flatnonzero(np.isin(self.columns["outcome"], codes)).tolist()
        return found

    def ended(self, *outcomes: Outcome) -> list[Episode]:
        """The episodes with these outcomes."""
        return self.at(self.rows(*outcomes))

    def lines(self, name: str) -> Iterator[str]:
        """Yield a text of each episode, as JSON."""
        for texts in self.texts:
            yield from texts[_TEXTS.index(name)].split("\n")

    @property
    def remarks(self) -> Counter[str]:
        """What is to be told of episodes, with the number of these."""
        found: Counter[str] = Counter()
        for text, count in Counter(self.lines("remarks")).items():
            found.update(dict.fromkeys(value_of(text), count))
        return found


def common_rows(a: Trials, b: Trials) -> tuple[Array, Array]:
    """Where the trials of both are, in a and in b, in a's order."""
    if a == b:
        rows = np.arange(len(a))
        return rows, rows
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys((*a.kinds, *b.kinds)))}
    kinds = [np.array([numbers[one] for one in some.kinds], np.int64)[some.kind] for some in (a, b)]
    columns = (kinds, (a.seed, b.seed), (a.repeat, b.repeat))
    keys = np.stack([np.concatenate(both) for both in columns])
    order = np.lexsort(keys)
    # A trial that both have stands there twice, that of a before that of b.
    is_common = (keys[:, order[1:]] == keys[:, order[:-1]]).all(axis=0)
    rows, others = order[:-1][is_common], order[1:][is_common] - len(a)
    by_row = np.argsort(rows)
    return rows[by_row], others[by_row]


def refuse_equal_slugs(trials: Sequence[Trial], taken: set[str]) -> None:
    """Refuse two trials with one folder name, which would mix their files."""
    kinds = {trial[:2] for trial in trials}
    names = {Trial(*kind, seed=0).slug.removesuffix("-0").rstrip("-") for kind in kinds}
    if not taken and len(names) == len(kinds) and all(len(n.encode()) < _SHORT for n in names):
        return  # Names of tasks that differ, and by more than dashes, do so with any numbers.
    seen = set(taken)
    for trial in trials:
        if trial.slug in seen:
            raise RunFolderError(
                f"Trial {trial.id} has the folder name of another trial, {trial.slug!r}. Rename "
                f"the suite or the task of one."
            )
        seen.add(trial.slug)


def row_of(episode: Episode) -> tuple[Any, ...]:
    """An episode's values, in the order of COLUMNS, as a ledger keeps them."""
    values = (*(getattr(episode, name) for name in _KINDS), episode.error)
    texts = [json.dumps(some) if some else "[]" for some in (episode.files, episode.remarks)]
    told = json.dumps(episode.told) if episode.told else "{}"
    return values[0], episode.outcome.value, *values[2:], texts[0], told, texts[1]


def gathered(rows: Iterable[tuple[Any, ...]]) -> tuple[Trials, Episodes]:
    """The trials of a plan, and the episodes of those that ended. A row is suite, task, seed and
    repeat of a trial, and what is kept of its episode, in the order of COLUMNS, or as far as
    NUMBERS; of a trial without one, None."""
    kinds: dict[tuple[str, str], int] = defaultdict(itertools.count().__next__)
    plan: list[list[Array]] = [[np.zeros(0, dtype)] for dtype in (np.int32, np.int64, np.int32)]
    columns: dict[str, list[Array]] = {}
    places, first, ended = [np.zeros(0, np.int64)], 0, 0
    texts: list[list[str]] = []
    starts: list[int] = []
    rows = iter(rows)
    while batch := list(itertools.islice(rows, BATCH)):
        suites, tasks, seeds, repeats, attempts, *_ = found = list(zip(*batch, strict=True))
        kind = [kinds[key] for key in zip(suites, tasks, strict=True)]
        for known, planned in zip(plan, (kind, seeds, repeats), strict=True):
            _grow(known, np.array(planned, known[0].dtype))
        at = np.arange(first, first + len(batch))
        first += len(batch)
        if None in attempts:
            at = at[[attempt is not None for attempt in attempts]]
            found = list(zip(*(row for row in batch if row[4] is not None), strict=True))
        if not len(at):
            continue
        places.append(at)
        values = dict(zip(COLUMNS, found[4:], strict=False))
        values["outcome"] = tuple(_CODES[outcome] for outcome in values["outcome"])
        for name in values.keys() & _KINDS.keys():
            # SQLite keeps a NaN as NULL, of which numpy makes a NaN.
            _grow(columns.setdefault(name, []), np.array(values[name], _KINDS[name]))
        starts.append(ended)
        ended += len(at)
        texts.append([_joined(name, values[name]) for name in _TEXTS if name in values])
    whole = [np.concatenate(each) for each in plan]
    trials = Trials(tuple(kinds), *whole)
    numbers = {name: np.concatenate(each) for name, each in columns.items()}
    numbers = numbers or {name: np.zeros(0, kind) for name, kind in _KINDS.items()}
    numbers["places"] = np.concatenate(places)
    rows_ended = numbers["places"] if ended < len(trials) else slice(None)
    return trials, Episodes(trials.taken(rows_ended), numbers, texts, starts)


def _grow(parts: list[Array], part: Array) -> None:
    """Add a part, and join them at times: many small ones leave holes between texts that stay."""
    parts.append(part)
    if len(parts) > _PARTS:
        parts[:] = [np.concatenate(parts)]


def _joined(name: str, values: Sequence[Any]) -> str:
    if name == "error" and set(values) != {None}:
        values = [json.dumps(error) for error in values]
    elif name == "error":
        values = ["null"] * len(values)
    return "\n".join(values)


def value_of(text: str) -> Any:
    """What a text of an episode says."""
    return _EMPTY[text] if text in _EMPTY else json.loads(text)
