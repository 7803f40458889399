"""The parent's end of the stream to one worker, and what more it may be able to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from hocket.core.data import Array, Observation, Signature
from hocket.core.wire import Message


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
