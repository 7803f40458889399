"""The values that travel through hocket. All are frozen; arrays in them are not written to.

Values that are made by the thousand are NamedTuples, which take a fraction of a dataclass's time
to make.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, overload

import numpy.typing as npt

from hocket.core.claims import Within

if TYPE_CHECKING:
    from hocket.core.specs import EnvSpec

Array = npt.NDArray[Any]
Observation = dict[str, Array]
"""One env's observation: flat, with slash-delimited keys (`observation/image`, ...). The prompt,
being text, travels beside it (`Row.prompt`)."""

Signature = tuple[tuple[str, tuple[int, ...], str], ...]
"""Keys, shapes and dtypes of an observation, sorted by key. Rows share a batch where it is one."""

_LONGEST_SLUG = 200
"""Bytes. File systems take names of 255, and what is written gets a few letters more."""
_UNPLAIN = re.compile(r"[^\w.-]")

SuccessRule = Literal["first", "any", "final"]
MOST_TOLD, LONGEST_KEY = 64, 100
"""How many values are kept of what an env told at the end, and how long their names may be."""
_Key = Annotated[str, Within(0, LONGEST_KEY)]
InfoValues = Annotated[Mapping[_Key, Union[bool, int, float]], Within(0, MOST_TOLD)]
"""What an env told in `info`, by key; the type of a value is its kind."""
NOTHING_TOLD: InfoValues = {}
Exactness = Literal["bitwise", "inputs", "environment"]
"""What "same trial, same result" means in a run, the most first."""


class Outcome(str, enum.Enum):
    """How a trial ended. An ERROR is never a failure of the policy, and is counted apart."""

    SUCCESS = "success"
    FAILURE = "failure"
    FINISHED = "finished"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """Names an adapter and its configuration, so that another process can build it."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        return {"name": self.name, "config": dict(self.config)}


class Trial(NamedTuple):
    """A planned episode. Everything random in it is keyed by these four, and by nothing else."""

    suite: str
    task: str
    seed: int
    repeat: int = 0

    @property
    def id(self) -> str:
        """The trial's name in reports; it is the same in every run that plans the trial."""
        tail = f".{self.repeat}" if self.repeat else ""
        return f"{self.suite}/{self.task}/{self.seed}{tail}"

    @property
    def slug(self) -> str:
        """The trial's name as a folder's. One that is too long for a file system is cut, and ends
        in a hash of the whole id."""
        tail = f".{self.repeat}" if self.repeat else ""
        plain = f"{_plain(self.suite, self.task)}-{self.seed}{tail}"
        if len(plain.encode()) <= _LONGEST_SLUG:
            return plain
        digest = hashlib.blake2b(self.id.encode(), digest_size=8).hexdigest()
        # A letter that the cut went through is left out.
        room = _LONGEST_SLUG - len(digest) - 1
        return f"{plain.encode()[:room].decode(errors='ignore')}-{digest}"


@functools.lru_cache(maxsize=4096)
def _plain(suite: str, task: str) -> str:
    """What the folder names of a task's trials begin with: a sweep has 100,000 of few tasks."""
    return _UNPLAIN.sub("-", f"{suite}/{task}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a policy may know about one row of a batch, beside its arrays."""

    trial: Trial
    attempt: int
    chunk: int
    """Index of the chunk asked for, from 0 in each attempt."""
    noise_seed: int
    """Keyed by trial and chunk: the same whatever the batch, lane, order or attempt."""
    prompt: str
    session: str
    """Names the attempt for policies that keep state for it, among all that ask the policy."""
    env: EnvSpec | None = None
    """The env that it is of: the very object that `Binds.bind` was given, since suites, runs and
    clients may have tasks of one name. None where nobody told."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """The observations of one `infer`: arrays stacked `[B, ...]`, row i described by `rows[i]`.

    With a history H > 1 in the policy's spec arrays are `[B, H, ...]`, oldest first.
    `pad` rows at the end repeat the last real one to fill a fixed shape: `len(rows)` is B less
    `pad`, and answers for padded rows are dropped.
    """

    arrays: Mapping[str, Array]
    rows: Sequence[Row]
    pad: int = 0

    @property
    def size(self) -> int:
        """B, padding included: what the policy must answer."""
        return len(self.rows) + self.pad


@dataclass(frozen=True, slots=True, eq=False)
class Actions:
    """A policy's answer: `values` is `[B, T, A]`, `extras` are arrays `[B, ...]`."""

    values: Array
    extras: Mapping[str, Array] = field(default_factory=dict)
    version: int | None = None
    """Version of the weights that answered, where the policy knows better than the engine."""
    source: str | None = None
    """Which server or replica answered."""


INTERVENTION = "intervention"
"""Key of an answer's extras: of which rows an expert took over from the policy, bool `[B]`."""
Answer = Union[Actions, Array]
"""What `Policy.infer` may return: `Actions`, or the plain array `[B, T, A]`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    """The actions `[T, A]` for one lane, with the weights and the source that made them."""

    actions: Array
    version: int
    source: str
    extras: Mapping[str, Array] = field(default_factory=dict)


class Chunks(Sequence[Chunk]):
    """The chunks of one answer, kept as columns; a row becomes a Chunk when it is asked for."""

    __slots__ = ("actions", "extras", "source", "version")

    def __init__(
        self, actions: Array, version: int, source: str, extras: Mapping[str, Array]
    ) -> None:
        self.actions = actions
        """The actions of all rows, `[B, T, A]`."""
        self.version = version
        self.source = source
        self.extras = extras

    def __len__(self) -> int:
        return len(self.actions)

    @overload
    def __getitem__(self, index: int) -> Chunk: ...

    @overload
    def __getitem__(self, index: slice) -> list[Chunk]: ...

    def __getitem__(self, index: int | slice) -> Chunk | list[Chunk]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return Chunk(
            actions=self.actions[index],
            version=self.version,
            source=self.source,
            extras={key: column[index] for key, column in self.extras.items()},
        )

    def count(self, value: object) -> int:
        # Readers count the rows that got no chunk (None): here there are none, and to look for them
        # would make a Chunk of every row.
        return 0 if value is None else super().count(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChecks:
    """How many rows were inferred again, elsewhere in another batch, and how many of them had other
    bits there."""

    made: int = 0
    differed: int = 0

    def __add__(self, other: RowChecks) -> RowChecks:
        return RowChecks(made=self.made + other.made, differed=self.differed + other.differed)


UNCHECKED = RowChecks()


class Episode(NamedTuple):
    """A trial that ended."""

    trial: Trial
    attempt: int
    """Number of the attempt that counts, from 0; `attempt + 1` were made."""
    outcome: Outcome
    steps: int
    total_reward: float
    terminated: bool = False
    truncated: bool = False
    chunks: int = 0
    error: str | None = None
    """What happened, for an ERROR, with the traceback where there is one."""
    seconds: float = 0.0
    """Wall time of the attempt."""
    files: tuple[str, ...] = ()
    """Files that sinks sealed, relative to the run folder."""
    progress: float | None = None
    """The share of subgoals that were reached, or the score, at the end, 0 to 1; None where neither
    was told. It and `told` are known once the episode is sealed."""
    told: InfoValues = NOTHING_TOLD
    """What else the env told at the end: values that are no part of the outcome."""
    remarks: tuple[str, ...] = ()
    """What the user is to be told of it, in sentences, each once."""
    diverged: bool = False
    """It is a FAILURE because actions or the simulator's state were NaN or infinite."""

    @property
    def verdict(self) -> str:
        """How it ended, for people."""
        return f"{self.outcome.value}, diverged" if self.diverged else self.outcome.value


def noise_seed(trial: Trial, chunk: int) -> int:
    """A 63-bit seed keyed by trial and chunk index alone."""
    return noise_seeds(trial)(chunk)


def noise_seeds(trial: Trial) -> Callable[[int], int]:
    """`noise_seed` by chunk index: what the chunks of a trial share is hashed once."""
    text = f"{trial.suite}\0{trial.task}\0{trial.seed}\0{trial.repeat}\0"
    shared = hashlib.blake2b(text.encode(), digest_size=8)

    def seed(chunk: int) -> int:
        mine = shared.copy()
        mine.update(b"%d" % chunk)
        return int.from_bytes(mine.digest(), "little") >> 1

    return seed


def signature(arrays: Mapping[str, Array]) -> Signature:
    return tuple((key, arrays[key].shape, arrays[key].dtype.str) for key in sorted(arrays))
