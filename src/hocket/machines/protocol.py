"""The messages between the driver and its sites, and how they become bytes.

A message is a NamedTuple, packed as a msgpack array behind its number in `MESSAGES`; `stream.py`
brings it over. Nothing is pickled. Leases are named by the place of their trial in the plan and the
number of the attempt. Times are seconds of the site's engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args

import msgpack
import xxhash

from hocket.core import frames
from hocket.core.claims import Count, Label, Seconds, Share, Within, require
from hocket.core.data import NOTHING_TOLD, Exactness, InfoValues
from hocket.core.wire import MAX_PIECE

PROTOCOL = 9
LONGEST = 1 << 16
"""Most bytes that are sent at once."""
HASHER = xxhash.xxh3_128
"""The hash of files' bytes. Connections are authentic without it (TLS, ssh, or this machine); it
takes a tenth of the time of SHA-256, and holds the interpreter throughout."""
PART = MAX_PIECE
"""Bytes of a part of a file, of weights or of a trajectory."""

Lease = tuple[Count, Count]
Part = Annotated[bytes, Within(0, PART)]
Sum = Annotated[float, Within(0, 1e15)]

# -- From a site -----------------------------------------------------------------------------------


class SiteHello(NamedTuple):
    """The first message of every connection."""

    protocol: int
    version: str
    """hocket's."""
    site: Label
    """Names the process of the site, over all its connections."""
    name: Label
    """What people call it."""


class Joined(NamedTuple):
    """The site is ready: its policy is loaded and its lanes are counted."""

    lanes: Annotated[int, Within(1, 1 << 14)]
    cores: Annotated[int, Within(1, 1 << 20)]
    level: Exactness
    """What "same trial, same result" can mean there."""
    depends_on: Mapping[str, Any]
    """What its numbers depend on; see `records/provenance.py`."""
    holds: Sequence[Lease]
    """Leases that it has from an earlier connection."""


class Began(NamedTuple):
    """Attempts were begun."""

    leases: Sequence[Lease]


class Returned(NamedTuple):
    """A lease is given back."""

    trial: Count
    attempt: Count
    error: str
    """Why the attempt was lost; empty where it never began."""
    spends: bool
    """True when the trial is to blame: a retry is spent."""
    files: Sequence[str]
    """Evidence of it, named as the files of an episode are."""


class FilePiece(NamedTuple):
    """A part of a file of an ended attempt, as `hocket.core.wire.Piece` has it, with a digest by
    `HASHER`. All come, in order, before their SealedEpisode."""

    trial: Count
    attempt: Count
    name: str
    begin: int
    data: Part
    digest: bytes


class SealedEpisode(NamedTuple):
    """An attempt has ended, and all its files are there."""

    trial: Count
    attempt: Count
    outcome: Literal["success", "failure", "finished"]
    steps: Count
    total_reward: float
    terminated: bool
    truncated: bool
    chunks: Count
    seconds: Seconds
    files: Sequence[str]
    """Names without folders."""
    rows: bytes
    """The ChunkRow of each chunk, one after the other, as `rows.py` packs them."""
    sources: Sequence[str]
    """What the rows name by number."""
    progress: Share | None = None
    told: InfoValues = NOTHING_TOLD
    remarks: Sequence[str] = ()
    diverged: bool = False


class Learned(NamedTuple):
    """What the env of a task turned out to be, as an EnvSpec's plain values."""

    suite: str
    spec: Mapping[str, Any]
    differs: str = ""
    """What differed when a trial of the suite was reset twice."""


class CollectedPart(NamedTuple):
    """A part of an attempt's trajectory, for a learner. All parts come, in order, before the
    SealedEpisode of the attempt."""

    trial: Count
    attempt: Count
    data: Part
    is_whole: bool
    """True for the last part of a stretch of its trajectory."""
    stored: int = -1
    """The number under which the site's starter has the data, where it was given to them; -1 where
    it comes here."""


class Follows(NamedTuple):
    """Which weights a collecting site acts with."""

    version: int
    """The newest version that it has."""
    floor: int
    """No chunk that it has not sent yet is of an older version."""


class Beat(NamedTuple):
    """A sign of life, every few seconds."""

    at: Seconds
    """What the site's clock says."""
    done: Annotated[Sequence[Sum], Within(6, 6)]
    """The fields of WorkDone, summed since the site began."""
    checks: tuple[Count, Count]
    """Rows that were checked since the last one, and how many of them differed."""
    doing: Label


class Left(NamedTuple):
    """The last message: why the site goes."""

    kind: Label
    """The name of the error's class; empty where it was asked to go."""
    message: str


# -- To a site -------------------------------------------------------------------------------------


class Refused(NamedTuple):
    """The site may not take part. It ends."""

    why: str


class Welcome(NamedTuple):
    """The run to take part in."""

    run: str
    kind: str
    """What sites do in it: eval, or collect for a learner."""
    start: Mapping[str, Any]
    """What else a site of that kind must know."""
    config: Mapping[str, Any]
    sinks: Sequence[Mapping[str, Any]]
    trial: tuple[str, str, int, int]
    """One of its trials, with which a site finds out how many lanes it can have."""
    episodes: int
    """How many remain."""
    beat_s: float
    """Seconds between two signs of life."""


Grant = tuple[int, int, tuple[str, str, int, int], Mapping[str, Any]]
"""A lease as it travels: trial, attempt, the trial's fields, and what to record."""


class Leased(NamedTuple):
    """Leases for the site."""

    leases: Sequence[Grant]


class AskedBack(NamedTuple):
    """Leases to be given back where they have not begun."""

    leases: Sequence[Lease]


class Settled(NamedTuple):
    """Leases that the site can forget: their episodes are committed, or nobody wants them."""

    leases: Sequence[Lease]


class Weights(NamedTuple):
    """A part of new weights to act with. The parts of a version come in order."""

    version: int
    data: Part
    is_whole: bool
    """True for the last part."""


class Over(NamedTuple):
    """The run is over."""

    goes_on: bool
    """True when another run may follow: the site says Hello again."""


Message = Union[
    SiteHello,
    Joined,
    Began,
    Returned,
    FilePiece,
    SealedEpisode,
    Learned,
    CollectedPart,
    Follows,
    Beat,
    Left,
    Refused,
    Welcome,
    Leased,
    AskedBack,
    Settled,
    Weights,
    Over,
]
MESSAGES: tuple[type[Any], ...] = get_args(Message)
_CODES = {kind: code for code, kind in enumerate(MESSAGES)}
_KINDS = dict(enumerate(MESSAGES))


def parts(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """Data in parts of `PART` bytes, each with True where it is the last."""
    for begin in range(0, max(1, len(data)), PART):
        yield data[begin : begin + PART], begin + PART >= len(data)


def pack(message: Message) -> bytes:
    """The bytes of a message."""
    return msgpack.packb((_CODES[type(message)], *message))  # type: ignore[no-any-return]


def unpack(data: bytes | bytearray) -> Message:
    """The message of these bytes; WireError where they are none."""
    message: Message = frames.unpack(data, _KINDS)
    require(message)
    return message
