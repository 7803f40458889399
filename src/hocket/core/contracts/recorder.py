"""What recorders are: readers follow the engine, sinks live in workers where frames are born.

Whoever wants to see a run as it happens (a display, a trace, a table) writes a Reader and gives it
to the engine, on whose thread it is called; hocket's own are the ledger and the progress
display. Whoever wants to keep what happens at each step writes a Sink, names it in
`WorkerSpec.sinks`, and finds it built in every worker; hocket's own are `steps`, `states` and
`video`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from hocket.core.data import Array, Observation, Outcome, Trial
from hocket.core.specs import TaskInfo

if TYPE_CHECKING:
    from hocket.core.events import Event

EVIDENCE = "evidence"
"""The key in `record` that asks an attempt to leave what it has recorded if it ends in an error."""
VIDEO = "video"
"""The key that asks for a video: `all` keeps it, and `failures`, `others` (what did not fail) or
`errors` only where the episode ends so; `any` keeps it too, and may then find it unwanted. What
was lost to an error keeps it in each case. With `later` nothing is filmed while it runs."""
DRAWN = "drawn"
"""The key that is false where nothing is to be drawn for a video: it is made only of pictures that
the env observes at every step anyway."""
IMAGES = "images"
"""The key that asks for every picture, lossless."""
RESTORED = "restored"
"""The key that is true where a worker shows stored states instead of running the episode."""
SPILL = ".spill"
"""Stands before `.tmp` in the name of a hidden file that is only to be read if its process dies:
`.steps.npz.spill.tmp`."""
STREAM = "stream"
"""The key that is true where the engine takes what becomes rows without a file."""
ROWS = ".rows"
"""The suffix of a sink's file whose rows go into a segment: waste once its episode is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkNeeds:
    """What a sink asks of the worker beyond actions and rewards."""

    observations: bool = False
    """An observation at every step, not only at decision points."""
    states: bool = False
    """A simulator state at every step, from envs with the snapshot ability."""
    cameras: tuple[str, ...] = ()
    """Image keys that it records, rendered at every step."""
    all_cameras: bool = False
    """Every camera that the env has, rendered at every step."""
    stride: int = 1
    """Steps from one observation, with its pictures, to the next; those of the reset and of the
    last step are always among them. More may come, where others want them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStart:
    """What a sink is told when an attempt begins."""

    trial: Trial
    attempt: int
    task: TaskInfo
    prompt: str
    folder: str
    """Absolute path of this attempt's folder; the sink makes it on its first write."""
    record: Mapping[str, Any]
    """What the engine asks for in this attempt (which cameras, video or not ...)."""
    abilities: tuple[str, ...] = ()
    """The abilities of the env, as `EnvSpec.abilities` has them."""
    rows: dict[str, bytes] | None = None
    """Where `seal` may lay what a file of rows would hold, by the file's name; else it writes."""


class StepRecord(NamedTuple):
    """One executed step, as a sink sees it. Step 0 is the reset: it has no action and no reward.
    Whoever keeps `action` or an array of `observation` longer than the call copies it; `state` is
    the sink's to keep."""

    step: int
    action: Array | None
    reward: float
    terminated: bool
    truncated: bool
    success: bool | None
    """What the env said at this step; None where it did not say."""
    chunk: int
    """Index of the chunk that the action is from; -1 at the reset."""
    age: int
    """Steps since the chunk's observation was taken."""
    observation: Observation | None
    """The whole flat observation, where one was taken at this step."""
    state: Array | None
    """The simulator's state `[S]` after the step, where a sink asked for it."""


class Track(Protocol):
    """One attempt's recording. It ends by `seal` or by `discard`, and once."""

    def step(self, record: StepRecord) -> None:
        """Take one step, in order from the reset on."""

    def seal(self, outcome: Outcome) -> Sequence[str]:
        """Make all of it durable (flush, fsync, rename) and name the files, as absolute paths. The
        outcome ERROR says that the attempt was lost, and that what there is of it is evidence."""

    def discard(self) -> None:
        """Leave nothing of the attempt behind."""


class Sink(Protocol):
    """A recorder that lives in the worker, where frames are born; it is built there by name. With
    a batched simulator the tracks of several attempts are open at once.

    Its class may have `files`, a tuple of what its files may be called, patterns of names without
    folders as `fnmatch` has them: it can then record in workers that do not share the parent's
    disk, from which no other files are accepted.
    """

    @property
    def needs(self) -> SinkNeeds: ...

    def open(self, start: AttemptStart) -> Track:
        """Begin to record an attempt."""


@runtime_checkable
class Selective(Protocol):
    """A sink that asks for more in some attempts than in others."""

    def needs_of(
        self, task: TaskInfo, record: Mapping[str, Any], abilities: Collection[str]
    ) -> SinkNeeds:
        """What it asks for in an attempt of this task; called before each reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The run that a named reader is made for: `hocket eval --reader NAME=ARG` calls what NAME
    means with ARG and this."""

    folder: Path
    config: Mapping[str, Any]
    """Its settings, as run.yaml has them."""
    resumed_at: int | None = None
    """The env step that an interrupted training run goes on from: what was told beyond it did not
    happen."""


class Reader(Protocol):
    """Follows the engine's events, in order, on the engine's thread, which waits: it is quick."""

    def on(self, event: Event) -> None: ...

    def close(self) -> None:
        """Let go of what is held, also after a run that broke off. Twice is safe."""


@runtime_checkable
class Hears(Protocol):
    """A reader of some kinds of events, which the engine does not call for others. It asks again
    after each SpecLearned."""

    hears: Collection[type[Event]]


def hearers(readers: Iterable[Reader], kind: type[Event]) -> list[Reader]:
    """Those of the readers that hear events of a kind."""
    return [each for each in readers if not isinstance(each, Hears) or kind in each.hears]


@runtime_checkable
class Durable(Protocol):
    """A reader whose work must not be lost."""

    def behind(self) -> bool:
        """True if it has so much left to do that no new trial may begin."""
