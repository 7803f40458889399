"""One row for each step: what was done, what came of it, what was seen, and of which chunk it was.

`StepsSink` keeps an attempt's steps in memory and leaves them as one small file in the attempt's
folder, of which `records/step_rows.py` makes rows of a table. The file needs no fsync: until
these are durable the episode does not count, and then the file is deleted.

Every array of an observation that is no picture goes into the column `state`, end to end; the
column `layout` says what lies where.

Nothing slow or large is imported here, and not pyarrow.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hocket.core.contracts.recorder import (
    EVIDENCE,
    RESTORED,
    ROWS,
    AttemptStart,
    SinkNeeds,
    StepRecord,
    Track,
)
from hocket.core.data import Array, Observation, Outcome
from hocket.core.specs import TaskInfo
from hocket.errors import ObservationError, RunFolderError
from hocket.system.durable import drafted
from hocket.workers.sinks.pictures import cameras_in
from hocket.workers.sinks.spill import NoTrack, Spill, leave_rows, packed

FILE = f"steps{ROWS}"
"""Holds two arrays in `.npy` format: a structured one with a row a step, and the bytes of a JSON
object with `prompt` and `layout`."""
ERROR_FILE = "steps.npz"
"""What an attempt leaves that ended in an error: the same two, as arrays `rows` and `said`."""
LARGEST = 4096
"""Numbers in an array that is kept at every step where not everything is to be kept: with more, the
steps of an episode would take tens of megabytes."""

NOT_SAID = -1
"""In the field `success` where the env did not say."""


class ObservedArray(NamedTuple):
    """An array of an observation, as the steps of an episode have it."""

    shape: tuple[int, ...]
    dtype: str
    is_kept: bool = True
    """False where it was too large to be kept."""

    @property
    def size(self) -> int:
        """How many numbers it has in the column `state`."""
        return math.prod(self.shape) if self.is_kept else 0


Layout = Mapping[str, ObservedArray]
"""The arrays of an episode's observations that are no pictures, by key, in the order in which they
lie in the column `state`."""


def read_layout(text: str) -> dict[str, ObservedArray]:
    """The layout that the column `layout` holds."""
    return {
        key: ObservedArray(tuple(array["shape"]), array["dtype"], array.get("kept", True))
        for key, array in json.loads(text).items()
    }


def split_states(states: Array, layout: Layout) -> dict[str, Array]:
    """Rows `[n, W]` of the column `state` as arrays `[n, ...]` by key, each in its own dtype."""
    found, begin = {}, 0
    for key, array in layout.items():
        if array.is_kept:
            part = states[:, begin : begin + array.size]
            found[key] = part.reshape(len(states), *array.shape).astype(array.dtype)
            begin += array.size
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsConfig:
    """How much is observed for the table of steps, beyond what costs nothing."""

    every_step: bool = False
    """Observe at every step an env that defers its observation and cannot be shown again later."""
    largest: int | None = LARGEST
    """Numbers in an array that is kept; None keeps arrays of any size."""


class StepsSink:
    """Records the numbers of every step, in the worker."""

    Config = StepsConfig
    files = (FILE, ERROR_FILE)

    def __init__(self, argument: str = "", config: StepsConfig | None = None) -> None:
        del argument
        self.config = config or StepsConfig()
        self.needs = SinkNeeds(observations=self.config.every_step)

    def needs_of(
        self, task: TaskInfo, record: Mapping[str, Any], abilities: Collection[str]
    ) -> SinkNeeds:
        """An observation at every step where each step gives one anyway, or where it is wanted and
        cannot be had from the simulator's states later."""
        del task, record
        is_shown_again = "snapshot" in abilities and "batched" not in abilities
        is_given = "deferred" not in abilities
        return SinkNeeds(observations=is_given or (self.config.every_step and not is_shown_again))

    def open(self, start: AttemptStart) -> Track:
        if start.record.get(RESTORED):
            return NoTrack()
        spills = bool(start.record.get(EVIDENCE))
        folder = Path(start.folder)
        return StepsTrack(self.config, folder, start.prompt, spills=spills, rows=start.rows)


class StepsTrack:
    """One attempt's steps, in memory until it is sealed."""

    is_brief = True

    def __init__(
        self,
        config: StepsConfig,
        folder: Path,
        prompt: str,
        *,
        spills: bool = False,
        rows: dict[str, bytes] | None = None,
    ) -> None:
        """One that `spills` leaves its steps also where its process dies."""
        self._spill = Spill(folder, ERROR_FILE, is_on=spills)
        self._spilled = 0
        self._rows = rows
        self._config = config
        self._folder = folder
        self._prompt = prompt
        self._numbers: list[tuple[int, int, int, float, bool, bool, int]] = []
        self._actions: list[Array] = []
        self._layout: dict[str, ObservedArray] | None = None
        self._pictures: frozenset[str] = frozenset()
        self._states: list[Array] = []
        self._observed: list[int] = []

    def step(self, record: StepRecord) -> None:
        success = NOT_SAID if record.success is None else int(record.success)
        at, ends = (record.step, record.chunk, record.age), (record.terminated, record.truncated)
        self._numbers.append((*at, record.reward, *ends, success))
        if record.action is not None:
            self._actions.append(np.array(record.action, np.float64).ravel())
        if record.observation is not None:
            self._observe(record.observation, record.step)
        if self._spill.is_due and self._actions:
            self._spill.write([self._table(self._spilled), self._said()])
            self._spilled = len(self._numbers)

    def seal(self, outcome: Outcome) -> Sequence[str]:
        table, said, path = self._table(), self._said(), self._folder / FILE
        self._spill.close()
        if outcome is Outcome.ERROR:
            path = self._folder / ERROR_FILE
            save_error_steps(path, table, said)
            return [str(path)]
        return leave_rows(path, packed(table, said), self._rows)

    def discard(self) -> None:
        self._spill.close()

    def _said(self) -> Array:
        """What is said of all steps together, as the bytes of JSON."""
        return np.frombuffer(_said(self._prompt, *(self._layout or {}).items()), np.uint8)

    def _observe(self, observation: Observation, step: int) -> None:
        """Keep every array that is no picture. Which they are is settled by the first observation
        of the attempt; one that comes, goes or changes its shape later is an error."""
        if self._layout is None:
            self._pictures = frozenset(cameras_in(observation))
            self._layout = {
                key: self._describe(array)
                for key, array in sorted(observation.items())
                if key not in self._pictures
            }
        strange = observation.keys() - self._layout.keys() - self._pictures
        if strange:
            # Which cameras are rendered may differ from step to step.
            strange -= set(cameras_in({key: observation[key] for key in strange}))
        if strange:
            raise ObservationError(
                f"The observation of step {step} has {min(strange)!r}, which the first one of the "
                f"episode had not: it cannot be recorded. Observe the same keys at every step."
            )
        parts = [
            _numbers_of(key, observation.get(key), array, step)
            for key, array in self._layout.items()
            if array.is_kept
        ]
        if parts:
            self._observed.append(len(self._numbers) - 1)
            self._states.append(np.concatenate(parts))

    def _describe(self, array: Array) -> ObservedArray:
        largest = self._config.largest
        is_kept = largest is None or array.size <= largest
        return ObservedArray(array.shape, array.dtype.str, is_kept)

    def _table(self, begin: int = 0) -> Array:
        """The rows from the given one on."""
        ahead = len(self._numbers) - len(self._actions)  # the reset, step 0, had no action
        actions = _stacked(self._actions[max(0, begin - ahead) :])
        seen = [i for i, at in enumerate(self._observed) if at >= begin]
        states = np.stack([self._states[i] for i in seen]) if seen else None
        table = np.zeros(len(self._numbers) - begin, _dtype(_width(actions), _width(states)))
        for name, *column in zip(_NUMBERS, *self._numbers[begin:], strict=True):
            table[name] = column
        if actions is not None:
            table["action"][len(table) - len(actions) :] = actions
        if states is not None:
            at = [self._observed[i] - begin for i in seen]
            table["state"][at] = states
            table["has_state"][at] = True
        return table


@lru_cache(256)
def _said(prompt: str, *layout: tuple[str, ObservedArray]) -> bytes:
    plain = {key: _plain(array) for key, array in layout}
    return json.dumps({"prompt": prompt, "layout": plain}).encode()


def _plain(array: ObservedArray) -> dict[str, Any]:
    plain: dict[str, Any] = {"shape": list(array.shape), "dtype": array.dtype}
    return plain if array.is_kept else {**plain, "kept": False}


def _numbers_of(key: str, array: Array | None, known: ObservedArray, step: int) -> Array:
    """An array as float64 `[size]`, a copy; what would not be the same numbers is refused."""
    if array is None or array.shape != known.shape:
        now = "missing" if array is None else f"{array.shape}"
        raise ObservationError(
            f"{key!r} is {now} at step {step}, and was {known.shape} at the first step of the "
            f"episode that was observed: it cannot be recorded."
        )
    numbers: Array = np.array(array, np.float64).ravel()
    # float64 holds whole numbers up to 2**53.
    is_wide = array.dtype.kind in "iu" and array.dtype.itemsize == 8
    if is_wide and (numbers.astype(array.dtype) != array.ravel()).any():
        raise ObservationError(
            f"{key!r} has whole numbers above 2**53 at step {step}, of which recording would lose "
            f"digits. Observe them as 32-bit numbers, or run with --record none."
        )
    return numbers


_NUMBERS: Mapping[str, str] = {
    "step": "<i4",
    "chunk": "<i4",
    "age": "<i4",
    "reward": "<f8",
    "terminated": "?",
    "truncated": "?",
    "success": "i1",
}


def _width(rows: Array | None) -> int:
    return 0 if rows is None else rows.shape[1]


@lru_cache(256)
def _dtype(actions: int, states: int) -> Any:
    """The fields of a row with so many numbers in its action and its state."""
    fields = [("has_state", "?"), ("action", "<f8", (actions,)), ("state", "<f8", (states,))]
    return np.dtype([*_NUMBERS.items(), *fields])


def is_row(dtype: np.dtype[Any]) -> bool:
    """True if rows of steps may have this dtype."""
    if dtype.names is None or not {"action", "state"} <= set(dtype.names):
        return False
    action, state = (np.empty((0, *dtype[name].shape)) for name in ("action", "state"))
    return action.ndim == state.ndim == 2 and dtype == _dtype(_width(action), _width(state))


def _stacked(actions: Sequence[Array]) -> Array | None:
    if len({len(action) for action in actions}) > 1:
        raise ObservationError("'action' changed its size in the middle of an episode.")
    return np.concatenate(actions).reshape(len(actions), -1) if actions else None


def join_portions(arrays: Sequence[Array]) -> tuple[Array, Array]:
    """The rows that were spilled in portions, each followed by what is said beside them; widths
    differ where a portion has no observation."""
    portions, said = arrays[0::2][: len(arrays) // 2], arrays[1::2]
    if not said:
        raise RunFolderError("No whole portion of steps was spilled.")
    widest = {name: max(p[name].shape[1] for p in portions) for name in ("action", "state")}
    kind = np.dtype(
        [
            (name, portions[0].dtype[name].base, (widest[name],) if name in widest else ())
            for name in portions[0].dtype.names or ()
        ]
    )
    joined = np.zeros(sum(map(len, portions)), kind)
    begin = 0
    for portion in portions:
        rows = joined[begin : begin + len(portion)]
        for name in kind.names or ():
            if name in widest:
                rows[name][:, : portion[name].shape[1]] = portion[name]
            else:
                rows[name] = portion[name]
        begin += len(portion)
    return joined, said[-1]


def save_error_steps(path: Path, rows: Array, said: Array) -> None:
    """Keep the steps of an attempt that ended in an error, durably."""
    with drafted(path) as draft:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "wb") as file:
            np.savez(file, rows=rows, said=said)


def load_error_steps(path: Path) -> Array:
    """The steps of an attempt that ended in an error, a row each: `step`, `action`, `reward` ..."""
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            rows: Array = file["rows"]
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as exc:
        raise RunFolderError(f"The steps in {str(path)!r} cannot be read: {exc}") from exc
    return rows
