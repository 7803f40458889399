"""A site that is no more than its connection."""

from __future__ import annotations

from websockets.asyncio.client import ClientConnection

import hocket
from hocket.machines import protocol
from hocket.machines.protocol import NOBODYS, Stream


async def begin(connection: ClientConnection) -> Stream:
    """The stream of a new connection."""
    await connection.send(Stream().opening())
    return Stream((await connection.recv(decode=False))[: len(NOBODYS)])


async def say(connection: ClientConnection, stream: Stream, *messages: protocol.Message) -> None:
    stream.post(iter(messages))
    while (frame := stream.frame()) is not None:
        await connection.send(frame)


def hello(site: str, name: str) -> protocol.SiteHello:
    return protocol.SiteHello(protocol.PROTOCOL, hocket.__version__, site, name)


JOINED = protocol.Joined(1, 1, "bitwise", {"code": {}, "hardware": {}}, [])
