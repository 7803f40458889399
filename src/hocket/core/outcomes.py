"""What an env tells of an episode in `info`: whether it succeeded, how far it came, and more.

An outcome is a bool, or 0 or 1 of any dtype. Several of them, in an array, a list or nested dicts,
are subgoals: under `final` all must hold at the last step, under `first` and `any` each counts from
the step on at which it was reached. A number from 0 to 1 is a score where the task declares one.
Anything else ends the run: it would be taken for a success or a failure that nobody told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hocket.core.arrays import as_numpy
from hocket.core.data import LONGEST_KEY, MOST_TOLD, Array, InfoValues
from hocket.core.specs import TaskInfo
from hocket.errors import OutcomeError

SUCCESS_KEYS = ("success", "is_success")
"""Where an env says in `info` whether it has succeeded: the first that says anything decides."""
_GYMNASIUM = (
    *("episode", "TimeLimit.truncated", "final_info", "final_obs"),
    *("final_observation", "terminal_observation"),
)
"""What gymnasium's own wrappers put into `info`."""
_ONE = np.zeros(1, np.int64)


class Goals:
    """What the attempts of some rows have reached so far: their subgoals, and their scores."""

    def __init__(self, rows: int = 1) -> None:
        self._reached = np.zeros((rows, 0), np.bool_)
        self._counts = np.zeros(rows, np.int64)
        """Subgoals of each row's attempt; 0 where it has told none."""
        self._scores = np.full(rows, np.nan)
        self._names: dict[str, tuple[str, ...]] = {}
        """What each task calls its subgoals, where they have names."""

    def restart(self, rows: Array) -> None:
        """Begin new attempts in these rows."""
        self._reached[rows], self._counts[rows], self._scores[rows] = False, 0, np.nan

    def progress(self, row: int = 0) -> float | None:
        """A row's score, or the share of subgoals that it has reached; None where it told none."""
        count = self._counts[row]
        if self._scores[row] >= 0:
            return float(self._scores[row])
        return float(self._reached[row, :count].mean()) if count else None

    def outcome(self, info: Mapping[str, Any], task: TaskInfo) -> bool | None:
        """True if the one row there is has succeeded; None where `info` does not say."""
        told, name, won = None, "", None
        for name in SUCCESS_KEYS:
            if name != task.score_key and (told := info.get(name)) is not None:
                break
        if task.score_key and (score := info.get(task.score_key)) is not None:
            won = self.score(_ONE, scores(score, task.score_key, task), task)
        elif isinstance(told, (int, float, np.bool_, np.floating)) and told in (0, 1):
            return bool(told)  # It takes a tenth of the time that arrays take.
        if told is not None:
            self.know(told, task)
            won = self.reach(_ONE, flags(told, name, task)[None], task)
        return None if won is None else bool(won[0])

    def know(self, told: Any, task: TaskInfo) -> None:
        """Learn what subgoals are called; those of one task are called the same at every step."""
        if not isinstance(told, Mapping):
            return
        names = tuple(_names(told))
        if (known := self._names.setdefault(task.name, names)) != names:
            raise OutcomeError(
                f"The env of {task.name!r} told the subgoals {', '.join(names)} at a step, and "
                f"{', '.join(known)} before. Each step must tell all of them "
                f"(docs/bring-an-env.md)."
            )

    def score(self, rows: Array, told: Array, task: TaskInfo) -> Array | None:
        """Take the scores of these rows; return which of them are successes, where that is said."""
        is_last = task.success_rule == "final"
        self._scores[rows] = told if is_last else np.fmax(self._scores[rows], told)
        return None if task.success_at is None else told >= task.success_at

    def reach(self, rows: Array, told: Array, task: TaskInfo) -> Array:
        """Take the outcomes of these rows, or their subgoals, bool `[rows, k]`; return which of
        them have succeeded."""
        count, known = told.shape[1], self._counts[rows]
        if ((known > 0) & (known != count)).any():
            raise OutcomeError(
                f"The env of {task.name!r} told {count} subgoals at a step of an episode, and "
                f"{known.max()} before. Each step must tell all of them (docs/bring-an-env.md)."
            )
        if count == 1:
            return told[:, 0]
        self._counts[rows] = count
        if (more := count - self._reached.shape[1]) > 0:
            self._reached = np.pad(self._reached, ((0, 0), (0, more)))
        if task.success_rule != "final":
            told = told | self._reached[rows, :count]
        self._reached[rows, :count] = told
        return np.asarray(told.all(axis=1))


def flags(told: Any, name: str, task: TaskInfo, rows: Array | None = None) -> Array:
    """What stands under a name in `info`, an outcome or k subgoals, as bool `[k]`. With `rows` it
    was told of many rows, in arrays `[N, ...]`, and is given of these, `[rows, k]`."""
    if isinstance(told, Mapping) and told:
        parts = [
            flags(told[key], f"{name}/{key}", task, rows)
            for key in sorted(told, key=str)  # whatever the order in which this step tells them
        ]
        return np.concatenate(parts, axis=-1)
    values = _array(told, rows)
    if values.dtype.kind in "biuf" and values.size and ((values == 0) | (values == 1)).all():
        return np.asarray(values == 1).reshape(-1 if rows is None else (len(rows), -1))
    if rows is not None:  # objects, or something among them that is refused
        return np.stack([flags(value, name, task) for value in values])
    raise _refused(
        told,
        name,
        task,
        "no outcome. A bool, 0 or 1 is one, an array or dict of them tells subgoals, and a number "
        "between is a score where the env declares a score_key",
    )


def _names(told: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of subgoals in the order of `flags`, those in inner dicts with slashes."""
    for key in sorted(told, key=str):
        if isinstance(told[key], Mapping):
            yield from _names(told[key], f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}"


def scores(told: Any, name: str, task: TaskInfo, rows: Array | None = None) -> Array:
    """What stands under a name in `info` as a score `[1]`, or as those of these rows."""
    values = _array(told, rows)
    values = values.reshape(-1) if rows is None else values
    if values.dtype.kind not in "biuf" or values.shape != (_ONE if rows is None else rows).shape:
        raise _refused(told, name, task, "no score: that is one number from 0 to 1")
    if (is_wrong := ~((values >= 0) & (values <= 1))).any():
        raise _refused(values[is_wrong][0], name, task, "no score: that is a number from 0 to 1")
    return values


def values_in(info: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float]:
    """The truth values and numbers in `info`, each of its own kind; those in dicts under keys with
    slashes."""
    found: dict[str, bool | int | float] = {}
    for key, value in info.items():
        if isinstance(value, Mapping):
            found.update(values_in(value, f"{prefix}{key}/"))
            continue
        if isinstance(value, (np.generic, np.ndarray)) and value.size == 1:
            value = value.item()
        if type(value) in (bool, int, float):
            found[f"{prefix}{key}"] = value
    return found


def told_at_end(info: Mapping[str, Any], task: TaskInfo) -> InfoValues:
    """What is kept of the last `info` of an episode: the values that are no part of its outcome."""
    read = next((key for key in SUCCESS_KEYS if info.get(key) is not None), "")
    own = (*_GYMNASIUM, task.score_key, read)
    found = values_in({key: value for key, value in info.items() if key not in own})
    fit = [
        (key, value)
        for key, value in found.items()
        if len(key) <= LONGEST_KEY and abs(value) < 1 << 63  # no column takes more, and no NaN
    ]
    return dict(fit[:MOST_TOLD])


def _array(told: Any, rows: Array | None) -> Array:
    """What was told as an array, of these rows where there are some."""
    try:
        values = np.asarray(None if np.ma.isMaskedArray(told) else as_numpy(told))
    except ValueError:  # lists of several lengths
        values = np.asarray(None)
    if rows is None:
        return values
    return values[rows] if values.ndim else np.full(rows.shape, values)


def _refused(told: Any, name: str, task: TaskInfo, why: str) -> OutcomeError:
    shown = " ".join(repr(told.item() if isinstance(told, np.generic) else told).split())
    shown = shown if len(shown) <= LONGEST_KEY else f"{shown[:LONGEST_KEY]}..."
    return OutcomeError(
        f"The env of {task.name!r} told info[{name!r}] = {shown} ({type(told).__name__}), which is "
        f"{why} (docs/bring-an-env.md)."
    )
