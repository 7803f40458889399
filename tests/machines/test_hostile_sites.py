"""What a site that has the key may say: it is ended, and nothing else is. Sites are trusted with
the leases that they hold, and with no others."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import secrets
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from hocket.errors import WireError
from hocket.machines import protocol
from hocket.machines.credentials import Credentials
from hocket.machines.leasing.entries import LeaseId
from hocket.machines.protocol import Stream
from hocket.runs.run import Run
from hocket.workers.remote.websocket import KEY_HEADER
from support.desk import Desk
from support.heard import Heard
from support.malformed import NOBODYS, framed, junk, messages, spoilt_bytes
from support.sites import ThreadSites, assert_same, machines, run_here, toys

MANY = 1_000_000
MANY_CONNECTIONS = 20_000


def drawn(capsys: pytest.CaptureFixture[str]) -> random.Random:
    """A source of chance, whose seed is printed; `HOCKET_FUZZ_SEED` draws the same again."""
    seed = int(os.environ.get("HOCKET_FUZZ_SEED", secrets.randbits(32)))
    with capsys.disabled():
        sys.stdout.write(f" (seed {seed}) ")
    return random.Random(seed)


def hear(desk: Desk, name: str, data: bytes, stream: Stream, *, ends: bool = True) -> str:
    """What a server does with what comes; the site that it is from, empty once it is ended. What
    raised may leave nothing behind: with `ends` false the site goes on."""
    try:
        for message in stream.feed(data):
            if isinstance(message, protocol.SiteHello) and name in ("", message.site):
                name = message.site
                desk.driver.open(message)
            else:
                desk.driver.hear(name, message, 1.0)
    except Exception as error:
        if desk.driver.failure is not None:
            raise
        if ends:
            desk.driver.put_out(name, 1.0, "broke the protocol", WireError(str(error)))
            desk.driver.disconnect(name)
            return ""
    return name


def fuzz(folder: Path, draw: random.Random, count: int) -> tuple[Desk, int]:
    """An honest site with two lanes does eight trials, while `count` messages of others come. Gives
    the number of sites that were ended: one in 30 of those that may not say what they said."""
    desk = Desk(folder, 8, retries=0)
    desk.join("honest", lanes=2)
    held = desk.leases("honest")
    ended, name, stream = 0, "", Stream()
    some: list[protocol.Message] = []
    for number in range(count):
        if not name:
            fresh = f"{draw.getrandbits(64):x}"
            some = messages(draw.choice([*held, NOBODYS]), fresh)
            stream = Stream()
            for message in some[: draw.choice((0, 1, 1, 1, 1, 1, 1, 1, 1, 2))]:
                name = hear(desk, name, framed(protocol.pack(message)), stream)
        ends = draw.random() < 1 / 30
        # The next one is not the rest of one that was cut.
        stream = Stream() if draw.random() < 0.9 else stream
        name = hear(desk, name, spoilt_bytes(draw, some), stream, ends=ends)
        ended += not name
        if number % 1000 == 0:
            desk.driver.turn(1.0)
            desk.driver.tick(1.0)
            for kept in (desk.posts, desk.events, desk.learnt):
                kept.clear()
    if name:
        desk.driver.bury_site(name, 1.0, "is gone")
    while held:
        for lease in held:
            desk.seal("honest", lease, 1.0)
        held = desk.leases("honest")
    return desk, ended


def assert_unhurt(desk: Desk) -> None:
    assert desk.driver.failure is None
    assert desk.driver.is_done
    desk.driver.finish(2.0)
    found = desk.ledger.episodes()
    assert {(e.trial.seed, e.outcome.value, e.steps, e.total_reward) for e in found} == {
        (seed, "success", 5, 1.0) for seed in range(8)
    }
    desk.ledger.close()


def test_what_sites_say_at_random_ends_them_and_costs_others_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk, ended = fuzz(tmp_path / "run", drawn(capsys), 4000)
    assert ended > 40
    assert_unhurt(desk)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_messages_of_hostile_sites_cost_others_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = drawn(capsys)
    desk, _ = fuzz(tmp_path / "warm", draw, 20_000)
    assert_unhurt(desk)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    desk, ended = fuzz(tmp_path / "run", draw, MANY)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    with capsys.disabled():
        sys.stdout.write(f" {ended} sites ended, {grown >> 10} MiB more ")
    assert grown < 300 << 10, "Memory was not given back."
    assert_unhurt(desk)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (protocol.Joined, {"lanes": -5}),
        (protocol.Joined, {"lanes": 10**12}),
        (protocol.Joined, {"cores": None}),
        (protocol.Joined, {"depends_on": {"versions": 5}}),
        (protocol.Joined, {"depends_on": {"versions": {1: "a", "b": 2}}}),
        (protocol.Beat, {"at": float("nan")}),
        (protocol.Beat, {"done": [1, None, 1, 1, 0.5, 0.5]}),
        (protocol.Beat, {"done": [1, 1, 1, 1, float("nan"), 0.5]}),
        (protocol.Began, {"leases": [[0]]}),
        (protocol.SealedEpisode, {"seconds": float("nan")}),
        (protocol.SealedEpisode, {"outcome": "error"}),
        (protocol.SealedEpisode, {"told": {"key": "text"}}),
        (protocol.Learned, {"spec": {}}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_one_message_ends_its_site_and_no_other_one(
    tmp_path: Path, kind: type[Any], changes: dict[str, Any]
) -> None:
    desk = Desk(tmp_path / "run")
    stream = Stream()
    said = messages(NOBODYS, "bad")
    (wrong,) = [message for message in said if type(message) is kind]
    first = said[: 1 if kind is protocol.Joined else 2]
    for message in (*first, wrong._replace(**changes)):
        name = hear(desk, "bad", framed(protocol.pack(message)), stream)
    assert name == ""
    desk.join("honest", lanes=2)
    for lease in desk.leases("honest"):
        desk.seal("honest", lease)
    assert desk.driver.is_done
    desk.driver.finish(1.0)


def test_a_site_can_neither_take_nor_return_what_another_one_has(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "run")
    desk.join("honest", lanes=2)
    held = desk.leases("honest")
    desk.join("thief", holds=held)
    assert desk.settled("thief") == held
    desk.driver.hear("thief", protocol.Began(held), 0.0)
    assert desk.driver.finish is not None
    for lease in held:
        desk.driver.hear("thief", protocol.Returned(*lease, "", False, []), 0.0)
        with pytest.raises(WireError, match="does not have"):
            desk.seal("thief", lease)
    for lease in held:
        desk.seal("honest", lease)
    assert desk.driver.is_done
    assert desk.settled("honest") == held


# -- real sockets --------------------------------------------------------------------------------


class Hostile:
    """Connects over and over, with the key and without, and says what comes to its mind."""

    def __init__(self, draw: random.Random, connections: int) -> None:
        self._draw = draw
        self.left = connections
        self.is_done = threading.Event()
        self.errors: list[BaseException] = []

    def start(self, port: int, key: str) -> None:
        threading.Thread(target=self._run, args=(port, key), daemon=True).start()

    def _run(self, port: int, key: str) -> None:
        try:
            asyncio.run(self._attack(port, key))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.errors.append(error)
        finally:
            self.is_done.set()

    async def _attack(self, port: int, key: str) -> None:
        await asyncio.gather(*(self._attack_on(port, key) for _ in range(8)))

    async def _attack_on(self, port: int, key: str) -> None:
        while self.left > 0:
            self.left -= 1
            try:
                await self._connect(port, key)
            except ConnectionRefusedError:
                self.left += 1
                return  # The run is over.
            except (OSError, EOFError, ConnectionClosed, InvalidHandshake, asyncio.TimeoutError):
                pass

    async def _connect(self, port: int, key: str) -> None:
        choice = self._draw.random()
        if choice < 0.05:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(self._draw.choice((b"\x16\x03\x01\xff", b"GET / HTTP/1.1\r\n\r\n", b"\0")))
            writer.close()
            return
        async with connect(
            f"ws://127.0.0.1:{port}",
            additional_headers={KEY_HEADER: key if choice < 0.9 else "guess"},
            compression=None,
            proxy=None,
            close_timeout=1.0,
        ) as connection:
            await self._speak(connection)

    async def _speak(self, connection: Any) -> None:
        draw = self._draw
        lease = LeaseId(draw.randrange(6), 0) if draw.random() < 0.5 else NOBODYS
        some = messages(lease, f"{draw.getrandbits(64):x}")
        if lease != NOBODYS:
            # One that joins may be leased this very attempt, and is trusted with what it has.
            some = [message for message in some if not isinstance(message, protocol.Joined)]
        if draw.random() < 0.95:
            await connection.send(Stream().opening())
        for message in some[: draw.choice((0, 1, 1, 1))]:
            await connection.send(framed(protocol.pack(message)))
        for _ in range(draw.randrange(4)):
            said = junk(draw)
            word = said if isinstance(said, str) else spoilt_bytes(draw, some)
            await connection.send(word)
        if draw.random() < 0.1:
            connection.transport.abort()


class BesideHostile(ThreadSites):
    """An honest site beside the others, and one more once they have done their worst."""

    def __init__(self, hostile: Hostile) -> None:
        super().__init__(0)
        self._hostile = hostile

    def start(self, port: int, credentials: str) -> None:
        self._where = (port, credentials)
        self.add(port, credentials)
        self._hostile.start(port, Credentials.parse(credentials, "the test").key)

    def poll(self) -> list[tuple[str, str]]:
        if self._hostile.is_done.is_set() and len(self.sites) == 1:
            self.add(*self._where)
        return []

    def is_hopeless(self) -> bool:
        return False


def attack(folder: Path, draw: random.Random, connections: int, episodes: int, least: int) -> None:
    """Runs evaluations, as many as it takes, while others attack their drivers, until so many
    connections were made and at least so many sites were ended: of those that come as a run ends
    nobody hears."""
    heard, left, number = Heard(), connections, 0
    config = toys(episodes=episodes, env_config={"step_s": 0.002}, retries=0)
    run_here(config, folder / "here")
    while left > 0 or sum("broke the protocol" in note for note in heard.notes) < least:
        left = max(left, 8)
        hostile, there = Hostile(draw, left), folder / str(number)
        # What a hostile site was leased before it went is nobody's for that long.
        elsewhere = machines(BesideHostile(hostile), lease_s=2.0)
        with elsewhere, Run.new(config, there) as run:
            report = run.finish(elsewhere=elsewhere, readers=(heard,))
        assert hostile.is_done.wait(600)
        assert not hostile.errors
        assert report.complete
        assert_same(folder / "here", there)
        left, number = hostile.left, number + 1


def test_hostile_connections_cost_an_honest_site_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    attack(tmp_path, drawn(capsys), 60, 12, 6)
    assert not caplog.records, "Strangers have filled the terminal."


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_thousand_hostile_connections_cost_an_honest_site_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    attack(tmp_path, drawn(capsys), MANY_CONNECTIONS, 200, 1000)
    assert not caplog.records, "Strangers have filled the terminal."
