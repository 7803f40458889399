"""Thousands of connections of strangers, each of which does something wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TOGETHER = 40
"""Connections at a time."""
PATIENCE_S = 20.0
_RESET = struct.pack("ii", 1, 0)


@dataclass
class Siege:
    """Who is besieged, and with what."""

    port: int
    say: Callable[[random.Random], bytes]
    """A message that is wrong somewhere."""
    path: str = "/"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Such as a key; half of the strangers bring another."""
    tls: ssl.SSLContext | None = None
    ended: Counter[str] = field(default_factory=Counter)
    """How connections ended, by what was done on them."""

    def lay(self, count: int, seed: int) -> None:
        asyncio.run(self._lay(count, random.Random(seed)))

    async def _lay(self, count: int, rng: random.Random) -> None:
        left = iter([rng.randrange(2**63) for _ in range(count)])

        async def strangers() -> None:
            for number in left:
                await self._stranger(random.Random(number))

        await asyncio.gather(*(strangers() for _ in range(TOGETHER)))

    async def _stranger(self, rng: random.Random) -> None:
        what = rng.choice(("silent", "noise", "head", "page", "frames", "frames", "frames"))
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", self.port, ssl=self.tls, limit=1 << 20
                )
                try:
                    await getattr(self, f"_{what}")(rng, reader, writer)
                    if rng.random() < 0.5:  # as where a client is killed
                        raw = writer.get_extra_info("socket")
                        with contextlib.suppress(OSError):
                            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                finally:
                    writer.transport.abort()
            self.ended[what] += 1
        except TimeoutError:
            self.ended[f"{what}, no answer"] += 1
        except (OSError, asyncio.IncompleteReadError):
            self.ended[f"{what}, cut"] += 1

    async def _silent(self, *_: object) -> None:
        await asyncio.sleep(0)

    async def _noise(
        self, rng: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(rng.randbytes(rng.choice((1, 30, 3000))))
        await writer.drain()

    async def _head(
        self, rng: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = self._hello(rng)
        writer.write(head[: rng.randrange(len(head))])
        await writer.drain()

    async def _page(
        self, rng: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        path = rng.choice(("/", "/healthz", "/metrics", self.path, f"{self.path}x", "/../../etc/x"))
        path += rng.choice(("", "?from=" + "9" * 5000, "?" + "a" * 9000, "/%ff%00", "/" * 500))
        lines = [f"GET {path} HTTP/1.1", "Host: localhost", f"Range: bytes={'9' * 4400}-"]
        lines += [f"X-{i}: {i}" for i in range(rng.choice((0, 3, 300)))]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        await writer.drain()
        await reader.read(1 << 16)

    async def _frames(
        self, rng: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(self._hello(rng))
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 101 " not in answer.partition(b"\r\n")[0]:
            return
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            body = self.say(rng)
            code = rng.choice((2, 2, 2, 2, 2, 1, 0, 8, 9, 10, 3, 15))
            size, way = len(body), rng.random()
            if way < 0.1:  # it never ends, or is said to be longer than anything
                size = rng.choice((size + 1, 1 << 20, 1 << 40, 2**63 - 1))
            elif way < 0.2:
                code = (code & 15) - 128  # not the last piece
            writer.write(bytes([128 + code]) + _size(size) + bytes(4) + body)
        await writer.drain()
        if rng.random() < 0.8:
            await reader.read(1 << 16)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await reader.read(1 << 16)

    def _hello(self, rng: random.Random) -> bytes:
        lines = [f"GET {self.path} HTTP/1.1", "Host: localhost", "Upgrade: websocket"]
        lines += ["Connection: Upgrade", "Sec-WebSocket-Version: 13"]
        lines += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
        for name, value in self.headers.items():
            lines += [f"{name}: {value if rng.random() < 0.5 else value[::-1]}"]
        if rng.random() < 0.1:
            at = rng.randrange(len(lines))
            lines[at] = rng.choice(("", lines[at] * 2, lines[at][:-3], "X: " + "y" * 9000))
        return "\r\n".join([*lines, "", ""]).encode()


def _size(size: int) -> bytes:
    """A frame's length as it travels, with the bit that says that a mask follows."""
    if size < 126:
        return bytes([128 + size])
    if size < 1 << 16:
        return b"\xfe" + size.to_bytes(2, "big")
    return b"\xff" + size.to_bytes(8, "big")


def listening(pid: int) -> list[int]:
    """The ports of loopback on which a process listens."""
    ours = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            ours.add(os.readlink(entry))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [
        int(row[1].partition(":")[2], 16)
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in ours
    ]


def holds(pid: int) -> tuple[int, int]:
    """The memory of a process, in bytes, and its open files."""
    (line,) = [x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in x]
    return int(line.split()[1]) << 10, len(list(Path(f"/proc/{pid}/fd").iterdir()))
