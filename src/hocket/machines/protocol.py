"""The messages between the driver and its sites, how they become bytes, and how these come over as
many connections as that takes.

A message is a NamedTuple, packed as a msgpack array behind its number in `MESSAGES`. Nothing is
pickled. Leases are named by the place of their trial in the plan and the number of the attempt.
Times are seconds of the site's engine.

Each way goes one row of bytes: the messages, each behind its length. A frame is the next part of
them, behind the number of bytes that have come the other way. What is not known to have come stays
with who sent it, and a new connection goes on where the last one has brought it, in the middle of a
message too. Once either end has forgotten the stream a new one begins, and both compare what they
hold.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args

import msgpack
import xxhash

from hocket.core import frames
from hocket.core.claims import Count, Label, Seconds, Share, Within, require
from hocket.core.data import NOTHING_TOLD, Exactness, InfoValues
from hocket.core.wire import MAX_PIECE
from hocket.errors import WireError

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
    """The ChunkRow of each chunk, one after the other, as `deliveries.py` packs them."""
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


FIRST = 1 << 11
"""Most bytes of a connection's first frame. A later one has at most as many as came before it: a
connection that breaks has brought about half of what it carried."""
NOBODYS = bytes(16)
"""The token of a stream that no driver knows."""
_AHEAD = 4 << 20
"""Bytes that are kept until they are known to have come: with more, no message is made."""
_MOST = 16 << 20
"""Most bytes of a message."""
_COUNT = struct.Struct(">Q")
_LENGTH = struct.Struct(">I")


class Stream:
    """One end of it. It has no socket: its frames go over one connection at a time, in order."""

    def __init__(self, token: bytes = NOBODYS) -> None:
        """`token` names the stream at both ends."""
        self._token = token
        self._waiting: deque[Iterator[Message]] = deque()
        self._kept = bytearray()
        """What is not known to have come."""
        self._come = self._sent = self._carried = 0
        """Bytes that have come there; bytes of those kept that were sent on this connection, and
        bytes of all its frames."""
        self._held = bytearray()
        """The beginning of a message that has not come whole."""
        self._received = self._told = 0
        """Bytes that have come here, and of how many of them the other end was told."""

    def post(self, messages: Iterator[Message]) -> None:
        """Have messages sent, each made when it can be."""
        self._waiting.append(messages)

    @property
    def is_sent(self) -> bool:
        """True when this connection needs to carry no more."""
        return not self._waiting and self._sent == len(self._kept)

    def opening(self) -> bytes:
        """What each end says first on a connection."""
        self._told = self._received
        return self._token + _COUNT.pack(self._received)

    def go_on(self, opening: bytes | str) -> bool:
        """Go on where the other end is, which begins a connection with this; false where it knows
        another stream."""
        if isinstance(opening, str) or len(opening) != len(NOBODYS) + _COUNT.size:
            raise WireError("What came begins no stream of hocket's.")
        if opening[: len(NOBODYS)] != self._token:
            return False
        self._sent = len(self._kept)
        self._forget(*_COUNT.unpack_from(opening, len(NOBODYS)))
        self._sent = self._carried = 0
        return True

    def frame(self) -> bytes | None:
        """What to send next; None where there is nothing before something is posted, or comes."""
        size = max(FIRST, min(LONGEST, self._carried)) - _COUNT.size
        while self._waiting and len(self._kept) < min(_AHEAD, self._sent + size):
            message = next(self._waiting[0], None)
            if message is None:
                self._waiting.popleft()
            else:
                data = pack(message)
                self._kept += _LENGTH.pack(len(data)) + data
        part = self._kept[self._sent : self._sent + size]
        if not part and self._received - self._told < _AHEAD // 8:
            return None
        self._sent += len(part)
        self._carried += _COUNT.size + len(part)
        self._told = self._received
        return _COUNT.pack(self._received) + part

    def feed(self, frame: bytes | str) -> list[Message]:
        """The messages that are whole with this frame; WireError where it is none."""
        if isinstance(frame, str) or len(frame) < _COUNT.size:
            raise WireError("What came is no frame of hocket's.")
        self._forget(*_COUNT.unpack_from(frame))
        self._held += memoryview(frame)[_COUNT.size :]
        self._received += len(frame) - _COUNT.size
        found = []
        while len(self._held) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._held)[0]
            if end > _MOST:
                raise WireError(f"A message has more than {_MOST} bytes.")
            if len(self._held) < end:
                break
            message = self._held[_LENGTH.size : end]
            del self._held[:end]
            found.append(unpack(message))
        return found

    def _forget(self, come: int) -> None:
        """Keep what has come there no longer."""
        gone = come - self._come
        if not 0 <= gone <= self._sent:
            raise WireError("More has come there than was sent.")
        del self._kept[:gone]
        self._come, self._sent = come, self._sent - gone
