"""What a runtime is: it starts workers somewhere, and ends them.

Whoever wants workers elsewhere (in containers, on other machines) writes a Runtime; hocket's own
are `hocket.workers.inline` (in the engine's process) and `hocket.workers.local` (processes of this
machine). It lives in the engine's process, serves one fleet, and gives a Link to each worker. What
the worker at the other end does is hocket's own (`hocket.workers.worker`): a runtime starts that
and carries the messages of `hocket.core.wire`. What some links can do beyond that is an ability:
LastWords, SelfDriven, Gathers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

from hocket.core.data import Array, Observation, Ref, Signature
from hocket.core.wire import Message


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
    """Observations of how many consecutive control steps are sent, oldest first."""
    sinks: tuple[Ref, ...] = ()
    folder: str | None = None
    """The run folder, where sinks write."""
    python: str | None = None
    """Another interpreter; None is this one."""
    renders: bool = False
    """It renders ended attempts again from their states, in a single env even where the suite is a
    batched one."""
    transport: str = "auto"
    """`shm`, `inline` or `auto` (shared memory where it can be had)."""

    def to_plain(self) -> dict[str, Any]:
        """The spec as plain lists and dicts, as it travels in the Open message."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain["suites"] = {name: ref.to_plain() for name, ref in self.suites.items()}
        plain["sinks"] = [ref.to_plain() for ref in self.sinks]
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> WorkerSpec:
        """The spec that `to_plain` gave."""
        values = dict(plain)
        values["suites"] = {name: Ref(**ref) for name, ref in values["suites"].items()}
        values["sinks"] = tuple(Ref(**ref) for ref in values["sinks"])
        for name in ("reads", "cameras"):
            values[name] = None if values[name] is None else tuple(values[name])
        return cls(**values)


class Link(Protocol):
    """The parent's end of the stream to one worker. Nothing here blocks."""

    def send(self, message: Message) -> bool:
        """Send a message; true when all of it left. What did not fit goes with calls of `flush`."""
        ...

    def flush(self) -> bool:
        """Send on what did not fit; true when nothing is left."""
        ...

    def receive(self) -> list[Message]:
        """All messages that have come, in order. Raises WorkerFailed once the worker is gone and
        all of them are read."""
        ...

    def fileno(self) -> int | None:
        """The file to wait on; None where `receive` itself does the work (inline)."""
        ...

    def steps(self, lane: int) -> int:
        """Control steps executed in the lane since the worker started; a worker that executes and
        whose count stands still hangs."""
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
    """A link that can make a hanging worker say where it hangs."""

    def last_words(self) -> str:
        """The end of the worker's log, with the stacks of its threads; blocks for moments."""
        ...


@runtime_checkable
class SelfDriven(Protocol):
    """A link without a file to wait on, whose worker takes steps in the parent's thread."""

    def work(self, seconds: float, is_called: Callable[[], bool], *, awaits_all: bool) -> None:
        """Take steps until there is something to receive, until `is_called` returns true, or for
        `seconds`. With `awaits_all` there is something to receive once all lanes that execute
        have something to say. However few the seconds, one step may be taken."""
        ...

    def due_s(self) -> float | None:
        """Seconds until `work` has something to do; None until a message is sent."""
        ...

    def expect(self, lanes: int, seconds: float) -> None:
        """Tell the worker that chunks for `lanes` lanes will probably be sent in `seconds`."""
        ...

    @property
    def step_s(self) -> float | None:
        """Seconds of one step, which costs the same for any number of lanes; 0 before the first
        step, None where each lane has a cost of its own."""
        ...


@runtime_checkable
class Gathers(Protocol):
    """A link that gives the observations of many lanes at once, on the device where they are."""

    def gather(self, lanes: Sequence[int]) -> Mapping[str, Array]:
        """The observations of these lanes, stacked `[k, ...]`. The caller owns the arrays: later
        steps do not change them."""
        ...

    def signature(self, lane: int) -> Signature:
        """Keys, shapes and dtypes of the lane's observation, without a copy of it."""
        ...


class Runtime(Protocol):
    """Starts workers somewhere, and ends them."""

    def start(self, spec: WorkerSpec) -> Link:
        """Ask for a worker. Does not wait for it: the link's first message is Hello, or the link
        fails. Raises WorkerFailed where no worker can be had."""
        ...

    def close(self) -> None:
        """End every worker that is left. Twice is safe."""
        ...
