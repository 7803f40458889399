"""The parent's end of the stream to one worker, and what some links can do beyond that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from hocket.core.data import Array, Observation, Signature
from hocket.core.wire import Message


class Link(Protocol):
    """The parent's end of the stream to one worker. Nothing here blocks."""

    def send(self, message: Message) -> bool:
        """Send a message; true when all of it left. What did not fit goes with calls of `flush`."""

    def flush(self) -> bool:
        """Send on what did not fit; true when nothing is left."""

    def receive(self) -> list[Message]:
        """All messages that have come, in order. Raises WorkerFailed once the worker is gone and
        all of them are read."""

    def fileno(self) -> int | None:
        """The file to wait on; None where `receive` itself does the work (inline)."""

    def steps(self, lane: int) -> int:
        """Control steps executed in the lane since the worker started, as far as it has told; a
        worker that executes and whose count stands still hangs."""

    def control(self, lane: int, word: int) -> None:
        """Set the lane's control word, which the worker reads between two steps."""

    def arrays(self, lane: int, chunk: int = 0) -> Observation:
        """The lane's last observation; views are valid until its next chunk is sent. With two slots
        the one for this chunk, which is valid until the chunk after it is sent."""

    def memory(self) -> int | None:
        """Resident bytes of the worker, where that can be read."""

    def kill(self) -> None:
        """End the worker, if it lives, and let go of all that belongs to it. Twice is safe."""


@runtime_checkable
class LastWords(Protocol):
    """A link that can make a hanging worker say where it hangs."""

    def last_words(self) -> str:
        """The end of the worker's log, with the stacks of its threads; blocks for moments."""


@runtime_checkable
class Audible(Protocol):
    """A link whose worker is heard of all the time, whatever its env does."""

    def silent_s(self, now: float) -> float:
        """Seconds for which nothing was heard of the worker; `now` is on the monotonic clock."""


@runtime_checkable
class SelfDriven(Protocol):
    """A link without a file to wait on, whose worker steps many rows in the parent's thread, and
    gives what they see at once, on the device where it is."""

    def work(self, seconds: float, is_called: Callable[[], bool], *, awaits_all: bool) -> None:
        """Take steps until there is something to receive, until `is_called` returns true, or for
        `seconds`. With `awaits_all` there is something to receive once all lanes that execute
        have something to say. However few the seconds, one step may be taken."""

    def due_s(self) -> float | None:
        """Seconds until `work` has something to do; None until a message is sent."""

    def expect(self, lanes: int, seconds: float) -> None:
        """Tell the worker that chunks for `lanes` lanes will probably be sent in `seconds`."""

    @property
    def step_s(self) -> float | None:
        """Seconds of one step, which costs the same for any number of lanes; 0 before the first
        step, None where each lane has a cost of its own."""

    def gather(self, lanes: Sequence[int]) -> Mapping[str, Array]:
        """The observations of these lanes, stacked `[k, ...]`. The caller owns the arrays: later
        steps do not change them."""

    def signature(self, lane: int) -> Signature:
        """Keys, shapes and dtypes of the lane's observation, without a copy of it."""
