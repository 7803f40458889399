"""The messages between the engine's process and its workers; `frames.py` makes bytes of them.

A message is a NamedTuple. Lanes are counted from 0 in each worker here, not over the whole fleet;
lists run in parallel. There is no number of a version: wherever a worker is, it runs the code of
the process that has it started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Union, get_args

from hocket.core.claims import Count, Seconds, Share, Within
from hocket.core.data import NOTHING_TOLD, Array, InfoValues, Outcome
from hocket.errors import EnvError, HocketError, SecondResetError, from_name
from hocket.system.text import frames, sentence

MAX_PIECE = 1 << 18
"""Most bytes of a file in one message: an observation never waits for more than that."""
TWICE = "twice"
"""In what is asked of an attempt: reset it twice, and tell whether both starts are the same."""


# -- To a worker ---------------------------------------------------------------------------------


class Open(NamedTuple):
    """The first message, but for Build: what the worker is for, a WorkerSpec as plain values."""

    spec: Mapping[str, Any]


class Build(NamedTuple):
    """Before Open: make the env of a task, while it is not known yet what will be read of it.
    Failed tells that it could not be made; else nothing is said."""

    spec: Mapping[str, Any]
    """The WorkerSpec as far as it is known, as plain values."""
    suite: str
    task: str


class Describe(NamedTuple):
    """Ask for the tasks of a suite; answered by Described, or Failed."""

    suite: str


class Begin(NamedTuple):
    """Reset lanes for new attempts; answered by Ready, or Failed."""

    lanes: Sequence[int]
    attempts: Sequence[int]
    trials: Sequence[tuple[str, str, int, int]]
    """The fields of each Trial: suite, task, seed, repeat."""
    max_steps: Sequence[int]
    """Steps after which each episode is truncated; 0 leaves the limit to the task."""
    final_observation: bool
    """True if the end of an episode is observed too."""
    record: Sequence[Mapping[str, Any]]
    """What is asked of each attempt: what the sinks record, and TWICE."""


class Course(NamedTuple):
    """What a lane does around the actions of a chunk, where it goes on while the policy thinks."""

    observe_at: int
    """Steps after which it is observed for its next decision: where it has steps left then,
    Observed tells, and it goes on."""
    before: int
    """Steps for which it holds still before its actions, as its env says; and after them."""
    after: int


class Execute(NamedTuple):
    """Run one chunk in each lane; answered by Executed, or Failed."""

    lanes: Sequence[int]
    attempts: Sequence[int]
    chunks: Sequence[int]
    counts: Sequence[int]
    """The number of actions for each lane."""
    actions: bytes | Array
    """float64, little-endian: each lane's `[count, A]`, one after the other. A batched simulator in
    this process gets an array `[B, k, A]` instead, which it reads before `send` returns."""
    courses: Sequence[Course] = ()
    """What each lane does around its actions; empty where all wait."""


class Discard(NamedTuple):
    """Forget these attempts and what was recorded of them."""

    lanes: Sequence[int]
    attempts: Sequence[int]


class Render(NamedTuple):
    """Restore the states of an ended attempt one by one and let the sinks record what is seen;
    answered by Sealed, or Failed. The worker runs no attempts meanwhile."""

    lane: int
    attempt: int
    trial: tuple[str, str, int, int]
    outcome: str
    length: int
    states: bytes
    """float64, little-endian: `[length, S]`, the first one at the reset."""
    record: Mapping[str, Any]
    """What the sinks are asked to record."""


class Close(NamedTuple):
    """Discard the attempt that is running, close the env, exit."""


class SetWord(NamedTuple):
    """Set a lane's control word, where there is no shared memory to write it in."""

    lane: int
    word: int


class Speak(NamedTuple):
    """Ask a worker elsewhere where it is; answered by Said, also while its env hangs."""


# -- From a worker -------------------------------------------------------------------------------


class Hello(NamedTuple):
    """The first message: who the worker is, and how its arrays travel."""

    pid: int
    python: str
    version: str
    transport: str


class Described(NamedTuple):
    """The tasks of a suite, as the fields of TaskInfo."""

    suite: str
    tasks: Sequence[Mapping[str, Any]]


class Ready(NamedTuple):
    """Lanes were reset and wait for their first chunk."""

    lanes: Sequence[int]
    attempts: Sequence[int]
    prompts: Sequence[str]
    spec: Mapping[str, Any] | None
    """The EnvSpec as plain values, where this worker has not sent it before."""
    layout: Sequence[tuple[str, Sequence[int], str, int]] | None
    """Key, shape, dtype and offset of each array, where that is new for these lanes."""
    block: int
    """The number of the shared memory that the layout is of; the file descriptor of one that is
    new comes with this message."""
    arrays: bytes | None
    """What shared memory would hold of these lanes, one after the other, where there is none."""
    build_s: Seconds
    """Seconds that it took to make the env; nearly 0 where it was there."""
    reset_s: Seconds
    """Seconds that the reset took."""
    differs: str | None = None
    """What differed when a lane was reset twice, empty where nothing did; None where none was."""


class Executed(NamedTuple):
    """Lanes ran a chunk, up to its end, the episode's, or a recall."""

    lanes: list[int]
    attempts: list[int]
    chunks: list[int]
    steps: list[Count]
    rewards: bytes
    """float64, little-endian: each lane's `[steps]`, one after the other."""
    ends: list[Annotated[int, Within(0, 63)]]
    """0 while the episode goes on, else flags of `END_*`."""
    busy_s: list[Seconds]
    """Seconds that each lane worked on its chunk, observing included."""
    observe_s: list[Seconds]
    """Seconds of these that were spent observing."""
    arrays: bytes | None
    """What shared memory would hold, where there is none and the end was observed."""


class Observed(NamedTuple):
    """Lanes were observed for their next decision, and go on with their chunks meanwhile. Executed
    follows."""

    lanes: list[int]
    attempts: list[int]
    chunks: list[int]
    """The chunks that they go on with."""
    steps: list[Count]
    """How many steps of these they had made."""
    arrays: bytes | None
    """What shared memory would hold, where there is none."""


class Sealed(NamedTuple):
    """The files of an ended attempt are durable; they are named relative to the run folder."""

    lane: int
    attempt: int
    files: Sequence[str]
    progress: Share | None = None
    """The fields of Episode of these names."""
    told: InfoValues = NOTHING_TOLD


class Failed(NamedTuple):
    """An error of the env or a sink ended an attempt; with lane -1 it concerns the whole worker."""

    lane: int
    attempt: int
    kind: str
    """Name of the exception."""
    message: str
    """What happened, in a sentence."""
    traceback: str
    """The frames of the user's code that the error came through; empty where there are none."""
    spends: bool = True
    """The trial has a retry less. What was only looked at costs it none."""

    @classmethod
    def of(cls, lane: int, attempt: int, exc: BaseException, who: str = "The env") -> Failed:
        """What became of something of the user's, which `who` names. Ctrl-C is nobody's error."""
        if isinstance(exc, KeyboardInterrupt):
            raise exc
        spends = not isinstance(exc, SecondResetError)
        if isinstance(exc, HocketError):
            return cls(lane, attempt, type(exc).__name__, str(exc), "", spends)
        said = f"{who} raised {sentence(exc)}"
        return cls(lane, attempt, type(exc).__name__, said, frames(exc), spends)

    @property
    def account(self) -> str:
        """The sentence, and the frames where there are any."""
        return f"{self.message}\n{self.traceback}".rstrip()

    @property
    def error(self) -> HocketError:
        """The error that it tells of: one of hocket's own, or the env's."""
        return from_name(self.kind, self.message) or EnvError(self.account)


class Progress(NamedTuple):
    """Steps executed so far in each lane, where there is no shared memory to count them in."""

    steps: Sequence[Count]


class Pulse(NamedTuple):
    """A sign of life, a few seconds after the last one, from a worker that is elsewhere. It is
    answered by the same, so that either end notices a link on which nothing moves any more."""

    memory: int | None
    """Resident bytes of the worker, where that can be read."""


class Said(NamedTuple):
    """The end of the worker's log, with the stacks of its threads."""

    text: str


class Ended(NamedTuple):
    """The last message from elsewhere: how the worker ended, and the end of its log."""

    account: str


class Piece(NamedTuple):
    """A part of a file that a sink has sealed, from a worker that does not share the parent's disk;
    or all of one, without a digest, that becomes rows and need not be a file at all. All pieces of
    an attempt's files come, in order, before its Sealed."""

    lane: int
    attempt: int
    name: str
    """The file's name in the attempt's folder, without a folder."""
    begin: int
    """The offset of the data in the file."""
    data: Annotated[bytes, Within(0, MAX_PIECE)]
    digest: bytes
    """The SHA-256 of the whole file, with its last piece; empty before that."""


class Remark(NamedTuple):
    """What the user should be told of an attempt: once, before the chunk's answer that shows it."""

    lane: int
    attempt: int
    text: Annotated[str, Within(0, 2000)]


class Told(NamedTuple):
    """Numbers that envs told in `info` at the steps of chunks whose Executed follows, where the
    worker's spec asks for them."""

    lanes: list[int]
    attempts: list[int]
    chunks: list[int]
    steps: list[Count]
    numbers: Annotated[Mapping[str, bytes], Within(1, 1000)]
    """By key, float64, little-endian: each lane's `[steps]`, one after the other; NaN where a step
    did not tell."""


END_TERMINATED = 1
END_TRUNCATED = 2
END_SUCCESS = 4
END_JUDGED = 8
"""The env said if it succeeded: else the outcome is FINISHED."""
END_OBSERVED = 16
"""A final observation is there."""
END_DIVERGED = 32  # Actions or the state were NaN or infinite: a FAILURE, whatever the env said.


def outcome_of(ends: int) -> Outcome:
    """The outcome of an episode that ended with these flags."""
    if not ends & (END_JUDGED | END_DIVERGED):
        return Outcome.FINISHED
    won = ends & (END_SUCCESS | END_DIVERGED) == END_SUCCESS
    return Outcome.SUCCESS if won else Outcome.FAILURE


Message = Union[
    Open,
    Describe,
    Begin,
    Execute,
    Discard,
    Close,
    Hello,
    Described,
    Ready,
    Executed,
    Sealed,
    Failed,
    Progress,
    Render,
    SetWord,
    Speak,
    Pulse,
    Said,
    Ended,
    Piece,
    Observed,
    Remark,
    Told,
    Build,
]
"""Every message. A message's index here is its number on the wire, so new ones go to the end."""
MESSAGES: tuple[type[Any], ...] = get_args(Message)
