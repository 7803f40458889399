"""Strangers by the thousand at every server of ours, and honest clients beside them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import connect

from hocket.adapters.policies.openpi.protocol import find_announcement, read_chunk, read_extended
from hocket.core.codec import pack, unpack
from hocket.core.specs import ArraySpec, PolicySpec
from hocket.errors import HocketError
from hocket.serve.frames import frame_limits, measure, unpack_map
from hocket.serve.gateway import Gateway
from hocket.serve.requests import Requests
from hocket.serve.shared import SharedReader
from hocket.workers.remote.websocket import KEY_HEADER
from support.malformed_requests import SOUND, wrong
from support.processes import DEADLINE_S, children, wait_until
from support.recorded_runs import SUCCESS, plan, record_run
from support.serve_command import command
from support.siege import Siege, holds, listening
from support.sites import assert_same, run_here, toys

FEW, MANY = 60, 20_000
SPARE_BYTES = 24 << 20
"""Memory that a server may keep of strangers that are gone: of how it was after the first tenth."""
counts = pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])


def say_json(rng: random.Random) -> bytes:
    said = ({"look": [1, 2]}, {"episode": 0}, {"label": "x", "cell": 0}, [], 3, None)
    text = json.dumps(rng.choice(said))
    odd = rng.choice(("[" * 9000, '{"look": [1e999]}', '{"episode": ' + "9" * 5000 + "}", text))
    return odd.encode()[: rng.choice((5, 20_000))]


class Honest:
    """A client that asks again and again, and looks at every answer."""

    def __init__(self, ask: Callable[[], bool]) -> None:
        self.right = self.wrong = 0
        self._ask = ask
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Honest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        if self._error is not None:
            raise self._error
        assert self.wrong == 0
        assert self.right

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self._ask():
                    self.right += 1
                else:
                    self.wrong += 1
        except BaseException as exc:  # noqa: BLE001 - raised again on the test's thread
            self._error = exc


@contextmanager
def asking(address: str, key: str = "") -> Iterator[Honest]:
    """An honest client of a policy server whose policy answers with what it sees."""
    headers = {"Authorization": f"Api-Key {key}"} if key else None
    with connect(address, compression=None, additional_headers=headers) as client:
        client.recv(timeout=DEADLINE_S)
        rng = np.random.default_rng(0)

        def ask() -> bool:
            value = float(rng.integers(1000))
            client.send(pack({"observation/state": np.array([value], np.float32), "prompt": "x"}))
            reply = client.recv(timeout=DEADLINE_S)
            assert isinstance(reply, bytes), reply
            return bool((unpack(reply)["actions"] == value).all())

        with Honest(ask) as honest:
            yield honest


def besiege(siege: Siege, pid: int, count: int, honest: Honest | None = None) -> None:
    """Lay siege in two parts, and compare what the server holds after each."""
    seed = random.SystemRandom().randrange(2**32)
    before = time.monotonic()
    siege.lay(count // 10, seed)
    wait_quiet(pid)
    memory, files = holds(pid)
    siege.lay(count - count // 10, seed + 1)
    took_s = time.monotonic() - before
    wait_until(lambda: holds(pid)[1] <= files + 4)
    wait_until(lambda: holds(pid)[0] <= memory + SPARE_BYTES)
    after = holds(pid)[0]
    told = (
        "" if honest is None else f", {honest.right:,} right answers beside, {honest.wrong} wrong"
    )
    print(  # noqa: T201 - the table in docs/design/faults.md
        f"\nseed {seed}: {sum(siege.ended.values()):,} connections in {took_s:.0f} s{told}; memory "
        f"{memory >> 20} MiB after a tenth, {after >> 20} MiB at the end; {dict(siege.ended)}"
    )
    assert sum(siege.ended.values()) == count


def wait_quiet(pid: int) -> None:
    """Wait until the strangers are gone: a server gives handshakes ten seconds."""
    seen = [holds(pid)[1]]

    def is_quiet() -> bool:
        time.sleep(0.5)
        seen.append(holds(pid)[1])
        return len(seen) > 4 and len({*seen[-4:]}) == 1

    wait_until(is_quiet)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [4000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_no_malformed_message_leads_to_anything_but_an_answer_or_a_refusal(count: int) -> None:
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    reads = {"observation/state": ArraySpec(shape=(1,), dtype="<f4")}
    specs = [PolicySpec(chunk_length=2, action_size=1, inputs=inputs) for inputs in (None, reads)]
    limits = [frame_limits(spec, 64) for spec in specs]
    servers = [Requests(spec, SharedReader(1 << 20)) for spec in specs]
    gateway = Gateway.__new__(Gateway)
    gateway._is_extended = True

    def read_map(frame: bytes, which: int) -> Mapping[str, Any]:
        measure(frame, limits[which])
        return unpack_map(frame)

    readers: tuple[Callable[[bytes], object], ...] = (
        lambda frame: servers[0].parse(read_map(frame, 0)),
        lambda frame: servers[1].parse(read_map(frame, 1)),
        lambda frame: gateway._parse(read_map(frame, 0)),
        read_chunk,
        lambda frame: read_extended(frame, 1),
        lambda frame: find_announcement(unpack(frame)),
    )
    refused = 0
    for number in range(count):
        frame = wrong(rng)
        try:
            readers[number % len(readers)](frame)
        except HocketError:
            refused += 1
        except Exception as exc:
            raise AssertionError(f"seed {seed}, frame {number}: {frame!r}") from exc
    assert 0.3 * count < refused < 0.95 * count
    for sound in SOUND[:4]:
        servers[0].parse(read_map(pack_plain(sound), 0))


def pack_plain(value: object) -> bytes:
    import msgpack

    frame: bytes = msgpack.packb(value)
    return frame


ECHO = ("--policy", "support.echo_policy:Echo", "--port", "0")


@counts
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("key", ["", "a key of 24 letters or so"], ids=["open", "key"])
def test_a_policy_server_under_siege_answers_honest_clients(count: int, key: str) -> None:
    variables = {"HOCKET_API_KEY": key} if key else {}
    with command(*ECHO, **variables) as (process, place), asking(place, key) as honest:
        port = int(place.rpartition(":")[2])
        headers = {"Authorization": f"Api-Key {key}"} if key else {}
        besiege(Siege(port, wrong, headers=headers), process.pid, count, honest)


@counts
@pytest.mark.timeout(3600)
def test_a_gateway_under_siege_answers_honest_clients(count: int) -> None:
    with command(*ECHO) as (_, behind):
        words = ("--policy", f"openpi://{behind.removeprefix('ws://')}", "--port", "0")
        with command(*words) as (process, place), asking(place) as honest:
            siege = Siege(int(place.rpartition(":")[2]), wrong)
            besiege(siege, process.pid, count, honest)


@counts
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("knows", [False, True], ids=["strangers", "with the token"])
def test_a_page_under_siege_shows_the_run(count: int, knows: bool, tmp_path: Path) -> None:
    token = "a-token-of-24-letters-or-so"
    (tmp_path / "key").write_text(token)
    record_run(tmp_path / "run", plan(["push"], 4), lambda _: SUCCESS, ended=4)
    words = [sys.executable, "-m", "hocket", "watch", str(tmp_path / "run")]
    with subprocess.Popen(
        [*words, "--key-file", str(tmp_path / "key")], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            address = process.stderr.readline().split()[-1]
            live = address.replace("http://", "ws://") + "live"

            def ask() -> bool:
                with connect(live, open_timeout=DEADLINE_S, origin=None) as page:
                    found = json.loads(page.recv(timeout=DEADLINE_S))
                return bool(found["kind"] == "snapshot")

            port = int(address.split(":")[2].partition("/")[0])
            path = f"/{token if knows else 'guess'}/live"
            with Honest(ask) as honest:
                besiege(Siege(port, say_json, path=path), process.pid, count, honest)
        finally:
            process.kill()
            assert "Traceback" not in process.stderr.read()


@counts
@pytest.mark.timeout(3600)
def test_a_driver_under_siege_of_strangers_runs_on(count: int, tmp_path: Path) -> None:
    episodes = max(6, count // 50)  # It lasts longer than the strangers do.
    config = toys(episodes=episodes)
    words = ["eval", "--env", "toy:count", "--policy", "random", "--video", "none", "--lanes", "1"]
    words += ["--env.step-s", "0.01", "--episodes", str(episodes), "--machines", "local:1"]
    with open(tmp_path / "log", "w") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "hocket", *words, "--out", str(tmp_path / "there")],
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: bool(listening(driver.pid)))
        (port,) = listening(driver.pid)
        siege = Siege(port, wrong, headers={KEY_HEADER: "guess"})
        siege.lay(count, random.SystemRandom().randrange(2**32))
        assert driver.wait(1800) == 0, (tmp_path / "log").read_text()
    finally:
        driver.kill()
        driver.wait()
    assert "Traceback" not in (tmp_path / "log").read_text()
    run_here(config, tmp_path / "here")
    assert_same(tmp_path / "here", tmp_path / "there")


@counts
@pytest.mark.timeout(3600)
def test_a_worker_elsewhere_under_siege_of_strangers_works_on(count: int, tmp_path: Path) -> None:
    # It lasts longer than the strangers do.
    step_s = 0.05 if count > 1000 else 0.01
    config = toys(episodes=max(30, count // 100), env_config={"step_s": step_s})
    there = dataclasses.replace(config, runtime="loopback")
    started = set(children(os.getpid()))
    run = threading.Thread(target=run_here, args=(there, tmp_path / "there"))
    run.start()
    try:
        found: dict[int, int] = {}

        def listens() -> bool:
            for pid in set(children(os.getpid())) - started:
                with contextlib.suppress(OSError):
                    found.update((port, pid) for port in listening(pid))
            return bool(found)

        wait_until(listens)
        ((port, pid),) = found.items()
        besiege(Siege(port, wrong, headers={KEY_HEADER: "guess"}), pid, count)
    finally:
        run.join(1800)
    assert not run.is_alive()
    run_here(dataclasses.replace(config, env_config={}), tmp_path / "here")
    assert_same(tmp_path / "here", tmp_path / "there")
