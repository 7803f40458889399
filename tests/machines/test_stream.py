"""A stream brings every message once and in order, over however short connections."""

from __future__ import annotations

import random

import pytest

from hocket.errors import WireError
from hocket.machines import protocol
from hocket.machines.protocol import FIRST, NOBODYS, Stream
from support.malformed import framed

TOKEN = b"0123456789abcdef"
Ends = tuple[Stream, Stream]


def some(draw: random.Random, first: int) -> list[protocol.Message]:
    """A few messages of any length, that are numbered from here on."""
    sizes = [int(draw.lognormvariate(6, 3)) % 300_000 for _ in range(draw.randrange(4))]
    return [protocol.Left(str(first + i), "x" * size) for i, size in enumerate(sizes)]


def carry(ends: Ends, draw: random.Random, life: int) -> tuple[list[str], list[str]]:
    """Connect both ends, carry frames in any order until one would be more than so many bytes, and
    give the messages that came at each end."""
    heard: tuple[list[str], list[str]] = ([], [])
    openings = [end.opening() for end in ends]
    assert ends[0].go_on(openings[1])
    assert ends[1].go_on(openings[0])
    while frames := [(i, frame) for i in draw.sample((0, 1), 2) if (frame := ends[i].frame())]:
        for i, frame in frames:
            if (life := life - len(frame)) < 0:
                return heard
            assert len(frame) <= protocol.LONGEST
            heard[1 - i].extend(message[0] for message in ends[1 - i].feed(frame))
    return heard


@pytest.mark.parametrize("seed", range(10))
def test_every_message_comes_once_and_in_order_whatever_is_cut(seed: int) -> None:
    draw = random.Random(seed)
    ends = (Stream(TOKEN), Stream(TOKEN))
    posted, heard = [0, 0], ([], [])  # type: ignore[var-annotated]
    while not all(end.is_sent for end in ends) or posted[0] < 40:
        for i, end in enumerate(ends):
            messages = some(draw, posted[i]) if posted[0] < 40 else []
            posted[i] += len(messages)
            end.post(iter(messages))
        came = carry(ends, draw, draw.choice((FIRST, 8000, 24_000, 700_000)))
        for all_, new in zip(heard, came, strict=True):
            all_ += new
    assert heard == tuple([str(n) for n in range(posted[1 - i])] for i in (0, 1))


def test_a_message_is_continued_where_the_last_connection_has_brought_it() -> None:
    ends, draw, connections = (Stream(TOKEN), Stream(TOKEN)), random.Random(0), 0
    ends[0].post(iter([protocol.Left("long", "x" * 1_000_000)]))
    heard: list[str] = []
    while not heard:
        connections += 1
        _, heard = carry(ends, draw, 11_000)
    # Each brought 2, 2 and 4 kB, and would have brought as much again with its next frame.
    assert 1_000_000 / 11_000 < connections <= 1_000_000 / 8_000


def test_no_more_is_made_than_may_be_lost() -> None:
    made = []

    def files() -> protocol.Message:
        made.append(b"x" * protocol.PART)
        return protocol.Weights(1, made[-1], is_whole=False)

    ends = (Stream(TOKEN), Stream(TOKEN))
    ends[0].post(iter(files, None))
    while (frame := ends[0].frame()) is not None:
        assert sum(map(len, made)) < 5 << 20
        assert ends[1].feed(frame) is not None
    # It goes on once it hears what has come.
    answer = ends[1].frame()
    assert answer is not None
    assert ends[0].feed(answer) == []
    assert ends[0].frame() is not None


def test_a_stream_that_the_other_end_does_not_know_does_not_go_on() -> None:
    assert not Stream(TOKEN).go_on(Stream(b"another one's 16").opening())
    assert not Stream(TOKEN).go_on(Stream().opening())
    assert not Stream().go_on(Stream(TOKEN).opening())


@pytest.mark.parametrize("said", ["text", b"", NOBODYS, TOKEN + bytes(9), TOKEN + b"\xff" * 8])
def test_what_is_no_opening_is_refused(said: bytes | str) -> None:
    with pytest.raises(WireError):
        Stream(TOKEN).go_on(said)


@pytest.mark.parametrize(
    "said", ["text", b"", b"\xff" * 8, bytes(8) + b"\xff" * 4, framed(b"junk"), framed(b"\x91\x7f")]
)
def test_what_is_no_frame_is_refused(said: bytes | str) -> None:
    with pytest.raises(WireError):
        Stream(TOKEN).feed(said)
