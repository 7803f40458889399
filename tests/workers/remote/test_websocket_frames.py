"""Frames of a WebSocket, held against those of the library."""

from __future__ import annotations

import random

import pytest
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from hocket.workers.remote.frames import (
    BINARY,
    MAX_MESSAGE,
    PING,
    FrameError,
    FrameReader,
    frame,
)


@pytest.mark.parametrize("masks", [False, True])
def test_what_the_library_sends_is_read_whole_however_it_arrives(masks: bool) -> None:
    chance = random.Random(11)
    for longest in (1, 7, 5000):
        sent, stream = b"", b""
        for size in (0, 1, 125, 126, 3000, 65535, 65536, 70001):
            if longest < 5000 and size > 3000:
                continue
            data, cut = chance.randbytes(size), size // 3
            sent += data
            parts = [(Opcode.BINARY, data[:cut], False), (Opcode.PING, b"there?", True)]
            for kind, part, is_last in [*parts, (Opcode.CONT, data[cut:], True)]:
                stream += Frame(kind, part, fin=is_last).serialize(mask=masks)
        pings = stream.count(b"there?") if not masks else None
        reader, heard, asked, at = FrameReader(are_masked=masks), b"", 0, 0
        while at < len(stream):
            size = chance.randint(1, longest)
            heard += b"".join(reader.take(memoryview(stream)[at : at + size]))
            asked += len(reader.pings)
            reader.pings.clear()
            at += size
        assert heard == sent
        assert pings is None or asked == pings


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
@pytest.mark.parametrize("masks", [False, True])
def test_the_library_reads_what_is_sent(size: int, masks: bool) -> None:
    reader = StreamReader()
    reader.feed_data(b"".join(frame(BINARY, bytes(range(256)) * (size // 256 + 1), masks=masks)))
    parsing = Frame.parse(reader.read_exact, mask=masks)
    with pytest.raises(StopIteration) as found:
        next(parsing)
    assert found.value.value.data == bytes(range(256)) * (size // 256 + 1)
    assert found.value.value.fin


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x82\x7f" + (MAX_MESSAGE + 1).to_bytes(8, "big"), 1009),
        (b"\x82\x7f" + b"\xff" * 8, 1009),
        (b"\x02\x7f" + MAX_MESSAGE.to_bytes(8, "big") + bytes(MAX_MESSAGE) + b"\x80\x01", 1009),
        (b"\x82\x80", 1002),  # masked, where it must not be
        (b"\xc2\x01", 1002),  # compressed
        (b"\x83\x01", 1002),
        (b"\x81\x01", 1003),  # text
        (b"\x80\x01", 1002),  # goes on with nothing
        (b"\x02\x01a\x82\x01", 1002),  # begins before the last has ended
        (b"\x89\x7e\x00\x7e", 1002),  # a long ping
        (b"\x09\x01", 1002),
    ],
    ids=lambda it: repr(it)[:30],
)
def test_what_no_stream_needs_is_refused_with_its_header(data: bytes, code: int) -> None:
    with pytest.raises(FrameError) as caught:
        FrameReader(are_masked=False).take(memoryview(data))
    assert caught.value.code == code


def test_frames_of_a_client_must_be_masked_and_nothing_follows_a_close() -> None:
    with pytest.raises(FrameError):
        FrameReader(are_masked=True).take(memoryview(b"\x82\x01a12345"))
    reader = FrameReader(are_masked=False)
    assert reader.take(memoryview(b"\x82\x01a\x88\x00\x82\x01b")) == [b"a"]
    assert reader.is_closed
    assert frame(PING, b"", masks=False) == (b"\x89\x00", b"")
