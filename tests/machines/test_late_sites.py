"""A site that comes as its run ends is told so, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from hocket.machines import protocol
from hocket.machines.credentials import Credentials
from hocket.machines.driver import Driver
from hocket.machines.protocol import Stream
from hocket.records.ledger.view import LedgerView
from hocket.runs.run import Run
from hocket.workers.remote.websocket import KEY_HEADER
from support.processes import DEADLINE_S
from support.raw_sites import JOINED, begin, hello, say
from support.sites import ThreadSites, machines, toys


class LateSites:
    """Two sites that have connected: once the run has ended one joins, the other says hello."""

    def __init__(self) -> None:
        self.is_here, self.may_speak, self.have_spoken = (threading.Event() for _ in range(3))
        self.heard: tuple[list[protocol.Message], list[protocol.Message]] = ([], [])
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), daemon=True)

    def start(self, port: int, credentials: str) -> None:
        self._url = f"ws://127.0.0.1:{port}"
        self._key = Credentials.parse(credentials, "the test").key
        self._thread.start()

    def join(self) -> None:
        self._thread.join(DEADLINE_S)

    async def _live(self) -> None:
        headers = {KEY_HEADER: self._key}
        async with (
            connect(self._url, additional_headers=headers, proxy=None) as one,
            connect(self._url, additional_headers=headers, proxy=None) as other,
        ):
            streams = await begin(one), await begin(other)
            await say(one, streams[0], hello("a" * 32, "one"))
            (welcome,) = streams[0].feed(await one.recv())
            assert isinstance(welcome, protocol.Welcome)
            self.is_here.set()
            await asyncio.to_thread(self.may_speak.wait)
            await say(one, streams[0], JOINED)
            await say(other, streams[1], hello("b" * 32, "other"))
            self.have_spoken.set()
            await asyncio.gather(
                hear(one, streams[0], self.heard[0]), hear(other, streams[1], self.heard[1])
            )


async def hear(connection: ClientConnection, stream: Stream, heard: list[protocol.Message]) -> None:
    try:
        async for data in connection:
            heard += stream.feed(data)
    except ConnectionClosed:
        pass


class BesideLate(ThreadSites):
    """A site that begins once the late ones are here."""

    def __init__(self, late: LateSites) -> None:
        super().__init__(0)
        self._late = late

    def start(self, port: int, credentials: str) -> None:
        self._where = (port, credentials)
        self._late.start(port, credentials)

    def poll(self) -> list[tuple[str, str]]:
        if self._late.is_here.is_set() and not self.sites:
            self.add(*self._where)
        return []

    def is_hopeless(self) -> bool:
        return False


def test_sites_that_speak_when_the_run_has_ended_hear_that_it_is_over_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, late = Driver.finish, LateSites()

    def finish_first(self: Driver, now: float) -> None:
        finish(self, now)
        late.may_speak.set()
        assert late.have_spoken.wait(DEADLINE_S)

    monkeypatch.setattr(Driver, "finish", finish_first)
    elsewhere = machines(BesideLate(late), mixed=True)
    with elsewhere, Run.new(toys(episodes=2), tmp_path / "run") as run:
        assert run.finish(elsewhere=elsewhere).complete
    late.join()
    assert late.heard == ([protocol.Over(goes_on=False)], [protocol.Over(goes_on=False)])
    with LedgerView.open(tmp_path / "run") as ledger:
        assert "one" not in [leg.host for leg in ledger.legs()]
