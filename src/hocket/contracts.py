"""The contracts between hocket's parts: read this page first.

A contract is a Protocol of about three methods. An optional ability is a Protocol of its own,
looked for on the outermost object only; it is never a stub that raises. `hocket.testing` checks
every contract here on anyone's implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from hocket.data import (
    Answer,
    Array,
    Batch,
    EnvSpec,
    Observation,
    PolicySpec,
    Ref,
    Row,
    Signature,
    TaskInfo,
)
from hocket.events import Event
from hocket.wire import Message

if TYPE_CHECKING:
    import gymnasium

# -- Policies ------------------------------------------------------------------------------------


class Policy(Protocol):
    """Maps a batch of observations to chunks; row i answers row i. Keeps nothing between calls.

    `infer` is called from threads of the engine's, its own among them, at most `spec.concurrency`
    at once. Arrays of the batch are its own to read until it returns.
    """

    @property
    def spec(self) -> PolicySpec: ...

    def infer(self, batch: Batch) -> Answer: ...

    def close(self) -> None: ...


@runtime_checkable
class Binds(Protocol):
    """A policy that adapts to the env: told what each task's env is before any row of it comes."""

    def bind(self, spec: EnvSpec) -> None: ...


@runtime_checkable
class Sessions(Protocol):
    """A policy that keeps state for each attempt is told when one begins and ends."""

    def begin_session(self, row: Row) -> None: ...

    def end_session(self, session: str) -> None: ...


@runtime_checkable
class Weights(Protocol):
    """A policy that takes new parameters, between two calls of `infer`."""

    def load_weights(self, parameters: Mapping[str, Array], version: int) -> None: ...


@runtime_checkable
class ReadsDevice(Protocol):
    """A policy that takes a batch's arrays where they live, by DLPack; others get numpy's."""

    @property
    def reads_device_arrays(self) -> bool: ...


@runtime_checkable
class Reconnects(Protocol):
    """A policy that is asked over connections, which may be lost and made again."""

    @property
    def reconnects(self) -> int:
        """How often that was."""
        ...

    @property
    def flushes(self) -> bool:
        """Whether what is left of stale chunks is to be recalled, and asked for again."""
        ...

    def is_stale(self, source: str) -> bool:
        """Whether the connection is gone that a chunk of this source came over."""
        ...


@runtime_checkable
class Sends(Protocol):
    """A policy that lives elsewhere, and what is sent there for one env's observation."""

    def request(self, observation: Observation, prompt: str) -> Mapping[str, Any]: ...


@runtime_checkable
class Replicas(Protocol):
    """A policy that can stand on several devices; one `infer` runs at a time on each."""

    def replicas(self, devices: Sequence[str]) -> Sequence[Policy]: ...


# -- Envs ----------------------------------------------------------------------------------------


class Suite(Protocol):
    """What a name like `metaworld:mt10` means. Importing and `tasks` need no simulator, unless the
    suite's adapter says `tasks_need_simulator = True`: then a worker is asked."""

    def tasks(self) -> Sequence[TaskInfo]: ...

    def make(self, task: str) -> gymnasium.Env[Any, Any]: ...


@runtime_checkable
class DeferredObservation(Protocol):
    """An env whose `step` is `advance` and then `observe`; `observe` changes nothing."""

    def advance(self, action: Array) -> tuple[float, bool, bool, dict[str, Any]]: ...

    def observe(self) -> Any: ...


@runtime_checkable
class Snapshot(Protocol):
    """An env whose whole simulator state is one float64 vector that can be taken and given back."""

    def get_state(self) -> Array: ...

    def set_state(self, state: Array) -> None: ...


@runtime_checkable
class SelectsCameras(Protocol):
    """An env that renders only the cameras asked for. `camera_keys` lists all it has, as keys of
    its flattened observation; `use_cameras` holds from the next `reset` or `observe` on."""

    @property
    def camera_keys(self) -> tuple[str, ...]: ...

    def use_cameras(self, keys: Collection[str]) -> None: ...


# -- Batched simulators --------------------------------------------------------------------------


class RowSteps(NamedTuple):
    """What one step gave, for every row, on the host; of rows that were not active nothing is
    read."""

    rewards: Array
    """float `[N]`."""
    terminated: Array
    """bool `[N]`."""
    truncated: Array
    """bool `[N]`."""
    success: Array | None = None
    """bool `[N]`; None where the simulator does not judge."""


class BatchedEnv(Protocol):
    """Many rows behind one step. A row that is not active does not move: no physics, no clock, no
    termination, to the bit. Rows know nothing of each other, and none resets itself.

    Everything random in a row follows from the seed of its last reset. What `observe` gives may
    live on a device (torch, or any array with DLPack); all else is numpy's.
    """

    @property
    def rows(self) -> int: ...

    @property
    def tasks(self) -> Sequence[str]:
        """Those that rows may be reset to, side by side."""
        ...

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Of one row."""
        ...

    @property
    def suspension(self) -> str:
        """How rows are kept from moving: `mask`, or `snapshot` where they are put back after each
        step of the others."""
        ...

    def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        """Begin anew in these rows, int `[k]`, and touch no other."""
        ...

    def step(self, actions: Array, active: Array) -> RowSteps:
        """One control step of the rows in the mask `[N]`, with actions `[N, ...]`."""
        ...

    def observe(self, rows: Array) -> Mapping[str, Array]:
        """What these rows see now, stacked `[k, ...]` under flat keys; changes nothing."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class RowSnapshots(Protocol):
    """A batched simulator whose rows' whole state, clocks and random numbers included, can be
    taken and given back: one vector of numbers for each row, stacked `[k, S]`."""

    def get_rows(self, rows: Array) -> Array: ...

    def set_rows(self, rows: Array, states: Array) -> None: ...


@runtime_checkable
class CostsByRow(Protocol):
    """A batched simulator whose step costs as much as the rows that move in it; a step of others
    costs nearly the same for any number of rows."""

    @property
    def steps_cost_by_row(self) -> bool: ...


@runtime_checkable
class BatchedSuite(Protocol):
    """A suite whose tasks run as rows of one simulator: `lanes` of them in one worker."""

    def tasks(self) -> Sequence[TaskInfo]: ...

    def make_rows(self, task: str, rows: int) -> BatchedEnv:
        """A simulator that has this task at least."""
        ...


# -- Workers -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """All that a worker must know to be built, anywhere, without pickling."""

    suites: Mapping[str, Ref]
    """The suites that it may be asked for, by the name that trials carry."""
    lanes: int = 1
    reads: tuple[str, ...] | None = None
    """Observation keys to send; None sends all."""
    cameras: tuple[str, ...] | None = None
    """Image keys to render; None renders all."""
    history: int = 1
    sinks: tuple[Ref, ...] = ()
    folder: str | None = None
    """The run folder, where sinks write."""
    python: str | None = None
    """Another interpreter; None is this one."""
    transport: str = "auto"
    """`shm`, `inline` or `auto` (shared memory where it can be had)."""


class Link(Protocol):
    """The parent's end of the stream to one worker. Nothing here blocks."""

    def send(self, message: Message) -> bool:
        """True when all of it left; what did not fit goes with later calls of `flush`."""
        ...

    def flush(self) -> bool:
        """Send on what did not fit; true when nothing is left."""
        ...

    def receive(self) -> list[Message]:
        """What has come, in order. Raises WorkerFailed once the worker is gone and all is read."""
        ...

    def fileno(self) -> int | None:
        """What to wait on; None means that `receive` itself does the work (inline)."""
        ...

    def steps(self, lane: int) -> int:
        """Control steps executed in the lane since the worker started: moves while it is alive."""
        ...

    def control(self, lane: int, word: int) -> None:
        """Set the lane's control word, which the worker reads between two steps."""
        ...

    def arrays(self, lane: int) -> Observation:
        """The lane's last observation; views are valid until its next chunk is sent."""
        ...

    def memory(self) -> int | None:
        """Resident bytes of the worker, where that can be read."""
        ...

    def kill(self) -> None:
        """End the worker, if it lives, and let go of all that belongs to it. Twice is safe."""
        ...


@runtime_checkable
class LastWords(Protocol):
    """A link that can make a worker that hangs say where."""

    def last_words(self) -> str: ...


@runtime_checkable
class SelfDriven(Protocol):
    """A link without a file descriptor whose worker has work of its own to do."""

    def work(self, seconds: float, is_called: Callable[[], bool], *, awaits_all: bool) -> None:
        """Do it, until there is something to receive (of all lanes that execute, where all are
        awaited), `is_called`, or so many seconds are over; however few, a step may be made."""
        ...

    def due_s(self) -> float | None:
        """In how many seconds there is some; None: not before something is sent."""
        ...

    def expect(self, lanes: int, seconds: float) -> None:
        """Chunks for so many lanes will probably be sent in so many seconds."""
        ...

    @property
    def step_s(self) -> float | None:
        """Seconds of a step that costs the same for any number of lanes; 0 before the first,
        None where each lane costs its own."""
        ...


@runtime_checkable
class Gathers(Protocol):
    """A link that gives the observations of many lanes at once, where they live."""

    def gather(self, lanes: Sequence[int]) -> Mapping[str, Array]:
        """Stacked `[k, ...]`, and nobody else's: they stay as they are."""
        ...

    def signature(self, lane: int) -> Signature: ...


class Runtime(Protocol):
    """Starts workers somewhere, and ends them."""

    def start(self, spec: WorkerSpec) -> Link: ...

    def close(self) -> None: ...


# -- Readers -------------------------------------------------------------------------------------


class Reader(Protocol):
    """A recorder that follows the engine's events, in order, on the engine's thread."""

    def on(self, event: Event) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Durable(Protocol):
    """A reader whose work must not be lost: while it is behind, no new trial begins."""

    def behind(self) -> bool: ...
