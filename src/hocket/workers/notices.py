"""What `Fleet.poll` tells. Lanes are ids of the fleet; lists run in parallel."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple, TypeVar, Union

from hocket.core.data import Array, InfoValues
from hocket.core.specs import EnvSpec
from hocket.errors import (
    HocketError,
    OutcomeError,
    RunFolderError,
    UsageError,
    WorkerFailed,
    from_name,
)


class LanesUp(NamedTuple):
    """A worker has come up; its lanes can begin."""

    lanes: Sequence[int]


class LanesBegun(NamedTuple):
    """Lanes were reset and wait for their first chunk."""

    lanes: Sequence[int]
    attempts: Sequence[int]
    prompts: Sequence[str]
    spec: EnvSpec | None
    """What workers told of the env."""
    differs: str | None
    """What differed when one of them was reset twice, empty where nothing did; None where none
    was."""


class LanesExecuted(NamedTuple):
    """Lanes ran a chunk, up to its end, the episode's, or a recall: all that one poll found."""

    lanes: list[int]
    attempts: list[int]
    chunks: list[int]
    steps: list[int]
    rewards: list[Array]
    """One for each step, float64 `[steps]`."""
    totals: list[float]
    """The sums of these, from the first step to the last: the same to the bit in any batch."""
    ends: list[int]
    """0 while the episode goes on, else flags `END_*` of the wire."""
    busy_s: list[float]
    observe_s: list[float]


class LanesObserved(NamedTuple):
    """Lanes were observed for their next chunks, and go on with those that they have."""

    lanes: list[int]
    attempts: list[int]
    steps: list[int]
    """How many steps of the running chunk each had made."""


class LanesTold(NamedTuple):
    """Envs told numbers in `info` at the steps of chunks that LanesExecuted is then told of."""

    lanes: list[int]
    attempts: list[int]
    chunks: list[int]
    numbers: list[dict[str, Array]]
    """Of each lane's chunk by key: float64 `[steps]`."""


Rows = TypeVar("Rows", LanesExecuted, LanesObserved, LanesTold)


def where(notice: Rows, is_kept: Sequence[bool]) -> Rows:
    """The same for the lanes of which `is_kept` is true."""
    columns: Sequence[list[Any]] = notice
    return type(notice)(*[list(compress(column, is_kept)) for column in columns])


class LaneSealed(NamedTuple):
    """Recordings of an ended attempt are durable. Comes once for every ended attempt (with no
    files where nothing records), and before the lane's next LanesBegun."""

    lane: int
    attempt: int
    files: Sequence[str]
    progress: float | None
    told: InfoValues
    rows: Mapping[str, bytes]
    """What files of rows would hold that need not be written, by their names."""


class WorkerFault(str, enum.Enum):
    """What may become of a worker."""

    CRASHED = "WorkerCrashed"
    HUNG = "WorkerHung"
    MEMORY = "WorkerMemory"
    """It took more than it may."""
    START = "WorkerStart"
    """It cannot be started."""

    def __str__(self) -> str:
        return self.value


class LaneFailed(NamedTuple):
    """An attempt is lost (or, with attempt -1, a worker that cannot be started)."""

    lane: int
    attempt: int
    kind: str
    """Name of the exception, or what became of the worker."""
    message: str
    traceback: str
    spends: bool = True
    """The trial has a retry less."""
    gone: bool = False
    """The worker is gone too and a fresh one is being started: LanesUp follows."""
    sealing: bool = False
    """It was an ended attempt, whose recordings could not be sealed."""

    @property
    def account(self) -> str:
        """What happened, with the frames of the user's code where there are any."""
        is_own = isinstance(self.kind, WorkerFault) or from_name(self.kind, "") is not None
        if self.traceback or not is_own:
            return f"{self.message}\n{self.traceback}".rstrip()
        return f"{self.kind}: {self.message}"

    def verdict(self, *, any_built: bool) -> HocketError | None:
        """The error that ends the run, where another attempt would fare no better: no worker can be
        started, the first env that was asked for cannot be, an env tells what is no outcome, or a
        sink cannot write. Were the run to go on, a full disk would count as an ERROR of every trial
        left."""
        if self.kind is WorkerFault.START:
            return WorkerFailed(f"No worker could be started. {self.account}")
        mistake = from_name(self.kind, self.message)
        is_usage = isinstance(mistake, UsageError) and not any_built
        return mistake if is_usage or isinstance(mistake, (RunFolderError, OutcomeError)) else None


class LanesRecycled(NamedTuple):
    """A worker between two episodes is being replaced, and nothing is lost: LanesUp follows."""

    lanes: Sequence[int]
    reason: str


class Remarked(NamedTuple):
    """A worker has something to tell of an attempt, in a sentence."""

    lane: int
    attempt: int
    text: str


Notice = Union[
    LanesUp,
    LanesBegun,
    LanesObserved,
    LanesTold,
    LanesExecuted,
    LaneSealed,
    LaneFailed,
    LanesRecycled,
    Remarked,
]
