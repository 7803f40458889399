"""hocket's OpenPI client against an independent stock server, healthy and broken."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.adapters.policies.openpi.connection import Dropped, PolicyConnection, parse_endpoint
from hocket.adapters.policies.openpi.policy import OpenPI, OpenPIConfig
from hocket.core import plugins
from hocket.core.codec import pack
from hocket.core.data import Batch, Row, Trial
from hocket.errors import (
    ChunkShapeError,
    ConfigError,
    PolicyError,
    PolicyUnavailableError,
    WireError,
)
from support.fault_proxy import FaultProxy
from support.processes import DEADLINE_S as WAIT_S
from support.processes import wait_until
from support.stock_openpi import StockServer, encode, free_port

STATE = "observation/state"


def make_batch(*values: float, prompt: str = "go") -> Batch:
    rows = tuple(
        Row(
            trial=Trial(suite="s", task="t", seed=int(value)),
            attempt=0,
            chunk=0,
            noise_seed=7,
            prompt=f"{prompt} {value:g}",
            session=f"s{value:g}",
        )
        for value in values
    )
    return Batch(arrays={"observation/state": np.array(values, np.float32)[:, None]}, rows=rows)


def echo(request: dict[str, Any]) -> dict[str, Any]:
    """A chunk of 3 x 2 that says whose it is."""
    return {"actions": np.full((3, 2), request["observation/state"][0], np.float32)}


@dataclass
class Opened:
    """Policies that a test opened, to be closed after it."""

    policies: list[OpenPI] = field(default_factory=list)

    def __call__(self, address: str, **settings: Any) -> OpenPI:
        settings = {"ready_timeout_s": WAIT_S, "timeout_s": WAIT_S, **settings}
        policy = OpenPI(address, OpenPIConfig(**settings))
        self.policies.append(policy)
        return policy


@pytest.fixture
def connect() -> Iterator[Opened]:
    opened = Opened()
    yield opened
    for policy in opened.policies:
        policy.close()
        policy.close()


def test_rows_reach_a_stock_server_with_their_own_prompts(connect: Opened) -> None:
    with StockServer(echo) as server:
        answer = connect(server.address).infer(make_batch(1, 2))
        assert answer.values.tolist() == [[[1, 1]] * 3, [[2, 2]] * 3]
        assert [request["prompt"] for request in server.requests] == ["go 1", "go 2"]
        assert answer.source == f"openpi://{server.address}#1"


def test_policy_is_found_by_its_name(connect: Opened) -> None:
    with StockServer(echo) as server:
        policy = plugins.build("policies", f"openpi://{server.address}", {"timeout_s": WAIT_S})
        connect.policies.append(policy)
        assert policy.infer(make_batch(4)).values.shape == (1, 3, 2)


def test_nothing_connects_before_the_first_question_and_once_is_enough(connect: Opened) -> None:
    with StockServer(echo) as server:
        policy = connect(server.address)
        assert server.connections == 0
        spec = policy.spec
        assert policy.spec is spec
        policy.infer(make_batch(1))
        assert server.connections == 1


def test_stock_server_gives_the_environment_only(connect: Opened) -> None:
    with StockServer(echo) as server:
        spec = connect(server.address).spec
        assert (spec.max_batch, spec.concurrency, spec.chunk_length) == (1, 2, 0)
        assert spec.exactness(alone=True) == "environment"


def test_padded_rows_are_not_sent(connect: Opened) -> None:
    with StockServer(echo) as server:
        batch = make_batch(5)
        padded = Batch(
            arrays={k: np.repeat(v, 4, axis=0) for k, v in batch.arrays.items()},
            rows=batch.rows,
            pad=3,
        )
        assert connect(server.address).infer(padded).values.shape == (4, 3, 2)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("reply", "settings"),
    [
        ({"action": np.full((3, 2), 9.0)}, {}),
        ({"targets": np.full((3, 2), 9.0)}, {"reply_key": "targets"}),
        (np.full((3, 2), 9.0), {}),
        ({"actions": np.full((1, 3, 2), 9.0)}, {}),
    ],
)
def test_dialects_of_replies_are_understood(
    connect: Opened, reply: Any, settings: dict[str, Any]
) -> None:
    with StockServer(lambda _: reply) as server:
        values = connect(server.address, **settings).infer(make_batch(1)).values
        assert values.tolist() == [[[9, 9]] * 3]


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        ({"acts": np.zeros((3, 2))}, PolicyError, "reply-key"),
        ({"actions": np.zeros((2, 3, 2))}, ChunkShapeError, r"\(2, 3, 2\)"),
        ({"actions": np.zeros((0, 2))}, ChunkShapeError, r"\(0, 2\)"),
        ({"actions": "text"}, ChunkShapeError, "actions"),
    ],
)
def test_wrong_reply_is_an_error_of_the_policy(
    connect: Opened, reply: Any, error: type[Exception], message: str
) -> None:
    with StockServer(lambda _: reply) as server, pytest.raises(error, match=message):
        connect(server.address).infer(make_batch(1))


def test_rows_of_one_batch_with_different_horizons_are_refused(connect: Opened) -> None:
    lengths = iter((3, 4))
    with (
        StockServer(lambda _: {"actions": np.zeros((next(lengths), 2))}) as server,
        pytest.raises(ChunkShapeError, match="one batch"),
    ):
        connect(server.address, max_batch=2).infer(make_batch(1, 2))


def test_mapping_makes_the_request_and_the_actions(connect: Opened) -> None:
    def server_side(request: dict[str, Any]) -> dict[str, Any]:
        assert request["observation/image"].shape == (224, 224, 3)
        return {"actions": np.full((5, 32), 4.0)}

    image = np.zeros((1, 48, 64, 3), np.uint8)
    batch = Batch(
        arrays={"observation/image": image, "observation/state": np.zeros((1, 39))},
        rows=make_batch(0).rows,
    )
    with StockServer(server_side) as server:
        policy = connect(server.address, mapping="metaworld")
        assert policy.spec.action_size == 4
        assert policy.spec.cameras == ("observation/image",)
        assert policy.infer(batch).values.tolist() == [[[1.0] * 4] * 5]


def test_error_frame_is_the_row_s_error_and_the_next_question_gets_its_own_answer(
    connect: Opened,
) -> None:
    def picky(request: dict[str, Any]) -> dict[str, Any]:
        if request["observation/state"][0] == 13:
            raise ValueError("unlucky")
        return echo(request)

    with StockServer(picky) as server:
        policy = connect(server.address)
        with pytest.raises(PolicyError, match="unlucky"):
            policy.infer(make_batch(13))
        assert policy.infer(make_batch(2)).values[0, 0, 0] == 2


def test_slow_server_is_waited_for_until_it_listens(connect: Opened) -> None:
    server = StockServer(echo, port=free_port())
    timer = threading.Timer(0.5, server.start)
    timer.start()
    try:
        assert connect(server.address).infer(make_batch(3)).values[0, 0, 0] == 3
    finally:
        timer.join()
        server.stop()


def test_server_that_never_comes_is_given_up_with_advice(connect: Opened) -> None:
    policy = connect(f"127.0.0.1:{free_port()}", ready_timeout_s=0.3)
    with pytest.raises(PolicyUnavailableError, match="ready-timeout"):
        policy.infer(make_batch(1))
    began = time.monotonic()
    with pytest.raises(PolicyUnavailableError):
        policy.infer(make_batch(1))
    assert time.monotonic() - began < WAIT_S, "an outage is not waited for again by every row"


def test_key_is_sent_and_a_wrong_one_is_not_retried(
    connect: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    with StockServer(echo, api_key="s3cret") as server:
        good = connect(server.address, api_key_file=str(tmp_path / "key"))
        assert good.infer(make_batch(1)).values.shape == (1, 3, 2)
        monkeypatch.setenv("HOCKET_API_KEY", "wrong")
        with pytest.raises(PolicyUnavailableError, match=r"HTTP 401.*api-key-file"):
            connect(server.address).infer(make_batch(1))


def test_restart_in_the_middle_of_a_batch_asks_all_its_rows_again(connect: Opened) -> None:
    asked = threading.Event()
    old = StockServer(echo)

    def dies(request: dict[str, Any]) -> dict[str, Any]:
        if request["observation/state"][0] == 2:
            asked.set()
            old.is_dead.wait(WAIT_S)
        return {"actions": np.full((3, 2), -1.0)}

    old.infer = dies
    with old, ThreadPoolExecutor() as pool:
        policy = connect(old.address, max_batch=3)
        future = pool.submit(policy.infer, make_batch(1, 2, 3))
        assert asked.wait(WAIT_S)
        old.stop()
        with StockServer(echo, port=old.port) as new:
            answer = future.result(WAIT_S)
            assert answer.values[:, 0, 0].tolist() == [1, 2, 3], "nothing of the old server"
            assert [request["prompt"] for request in new.requests] == ["go 1", "go 2", "go 3"]


def test_question_that_kills_its_server_is_not_asked_forever(connect: Opened) -> None:
    with StockServer(echo) as server, FaultProxy(server.port) as proxy:
        policy = connect(f"127.0.0.1:{proxy.port}", retries=2)
        policy.infer(make_batch(1))
        before = len(server.requests)

        def dies(_: dict[str, Any]) -> dict[str, Any]:
            proxy.drop_all()
            return {}

        server.infer = dies
        with pytest.raises(PolicyUnavailableError, match="Asked 3 times"):
            policy.infer(make_batch(1))
        assert len(server.requests) - before == 3


def test_late_reply_is_never_taken_for_a_newer_one(connect: Opened) -> None:
    is_slow = threading.Event()
    release = threading.Event()

    def sometimes_slow(request: dict[str, Any]) -> dict[str, Any]:
        if is_slow.is_set():
            is_slow.clear()
            release.wait(WAIT_S)
        return echo(request)

    with StockServer(sometimes_slow) as server:
        policy = connect(server.address, timeout_s=2.0, retries=0)
        policy.infer(make_batch(1))
        is_slow.set()
        with pytest.raises(PolicyUnavailableError, match=r"did not answer within 2\.0 s"):
            policy.infer(make_batch(2))
        release.set()
        assert policy.infer(make_batch(3)).values[0, 0, 0] == 3
        assert server.connections == 2


def test_deadline_counts_the_requests_ahead(connect: Opened) -> None:
    def slow(request: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.5)
        return echo(request)

    with StockServer(slow) as server, ThreadPoolExecutor(4) as pool:
        policy = connect(server.address, timeout_s=1.8, connections=4, retries=0)
        policy.infer(make_batch(0))
        answers = list(pool.map(lambda v: policy.infer(make_batch(v)), range(4)))
        assert [answer.values[0, 0, 0] for answer in answers] == [0, 1, 2, 3]


def test_reply_that_nobody_asked_for_ends_the_connection(connect: Opened) -> None:
    with StockServer(echo) as server:
        policy = connect(server.address, connections=1)
        for value in (1, 2, 3):
            source = str(policy.infer(make_batch(value)).source)
            server.send_unasked(encode(echo({STATE: [7.0]})))
            wait_until(partial(policy.is_stale, source))
        assert policy.infer(make_batch(4)).values[0, 0, 0] == 4
        assert server.connections == 4


def test_equal_answers_keep_their_connection(connect: Opened) -> None:
    """A policy without noise says the same of a scene that does not move."""
    with StockServer(lambda _: {"actions": np.ones((3, 2))}) as server:
        server.tells_times = False
        policy = connect(server.address, connections=1, max_batch=4)
        sources = {policy.infer(make_batch(1, 2, 3, 4)).source for _ in range(41)}
        assert (len(server.requests), server.connections, len(sources)) == (164, 1, 1)


@pytest.mark.parametrize("wrong", [b"\xc1", {"nothing": 1}, {"actions": np.zeros((2, 0))}])
def test_connection_whose_reply_cannot_be_used_is_never_asked_again(
    connect: Opened, wrong: Any
) -> None:
    with StockServer(lambda _: wrong) as server:
        policy = connect(server.address, connections=1)
        for number in (1, 2):
            with pytest.raises((PolicyError, WireError), match=f"#{number}"):
                policy.infer(make_batch(number))
        assert server.connections == 2


def test_question_that_was_given_up_keeps_no_place_in_the_pool(connect: Opened) -> None:
    gate = threading.Event()

    def stuck(request: dict[str, Any]) -> dict[str, Any]:
        if not gate.is_set():
            assert gate.wait(WAIT_S)
        return echo(request)

    with StockServer(stuck) as server:
        policy = connect(server.address, connections=1, timeout_s=0.5, ready_timeout_s=0.5)
        with ThreadPoolExecutor(4) as pool:
            failures = [pool.submit(policy.infer, make_batch(i)) for i in range(4)]
            assert any(one.exception(WAIT_S) for one in failures)
        gate.set()
        assert policy.infer(make_batch(9)).values[0, 0, 0] == 9


def test_killed_server_leaves_no_exception_that_nobody_reads() -> None:
    """The way is cut while a request that fills all buffers is being sent."""
    unread: list[dict[str, Any]] = []

    async def ask_the_dead(proxy: FaultProxy) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unread.append(context))
        connection = await PolicyConnection.open(parse_endpoint(f"127.0.0.1:{proxy.port}"), 1)
        proxy.is_stalled.set()
        big = pack({STATE: np.ones(1), "image": np.ones(24 << 20, np.uint8)})
        asking = asyncio.ensure_future(connection.ask(big, WAIT_S, bytes))
        while not proxy.held:
            await asyncio.sleep(0.01)
        proxy.drop_all()
        proxy.is_stalled.clear()
        with pytest.raises(Dropped):
            await asking

    with StockServer(echo) as server, FaultProxy(server.port) as proxy:
        asyncio.run(ask_the_dead(proxy))
    gc.collect()
    assert unread == []


@pytest.mark.parametrize("fault", ["truncate", "half-open", "drop", "delay"])
def test_faults_on_the_way_cost_time_but_no_answer(connect: Opened, fault: str) -> None:
    with StockServer(echo) as server, FaultProxy(server.port) as proxy:
        policy = connect(f"127.0.0.1:{proxy.port}", timeout_s=0.5, retries=60)
        assert policy.infer(make_batch(1)).values[0, 0, 0] == 1
        if fault == "truncate":
            proxy.cut_after = 20
        elif fault == "half-open":
            proxy.is_stalled.set()
            threading.Timer(0.7, proxy.is_stalled.clear).start()
        elif fault == "drop":
            proxy.drop_all()
        else:
            proxy.delay_s = 0.05
        for value in (2, 3):
            assert policy.infer(make_batch(value)).values[0, 0, 0] == value


def test_server_of_another_version_is_refused_in_words(connect: Opened) -> None:
    with StockServer(echo, metadata={"hocket": {"version": 99}}) as server:
        with pytest.raises(PolicyUnavailableError, match=r"version 99 .* same hocket on both"):
            connect(server.address).infer(make_batch(1))
        assert not server.requests


def test_many_threads_share_a_pool_and_get_their_own_rows(connect: Opened) -> None:
    with StockServer(echo) as server, ThreadPoolExecutor(8) as pool:
        policy = connect(server.address)
        answers = list(pool.map(lambda v: policy.infer(make_batch(v)), range(64)))
        assert [answer.values[0, 0, 0] for answer in answers] == list(range(64))
        assert server.connections <= 2


def test_load_is_spread_over_replicas_and_moves_when_one_dies(connect: Opened) -> None:
    both = threading.Barrier(2)

    def together(request: dict[str, Any]) -> dict[str, Any]:
        both.wait(WAIT_S)
        return echo(request)

    with StockServer(together) as one, StockServer(together) as two, ThreadPoolExecutor() as pool:
        policy = connect(f"{one.address},openpi://{two.address}")
        assert policy.spec.concurrency == 4
        answers = list(pool.map(lambda v: policy.infer(make_batch(v)), (1, 2)))
        assert [answer.values[0, 0, 0] for answer in answers] == [1, 2]
        assert len({answer.source for answer in answers}) == 2
        one.stop()
        two.infer = echo
        for value in range(4):
            answer = policy.infer(make_batch(value))
            assert answer.values[0, 0, 0] == value
            assert two.address in str(answer.source)


def test_server_may_answer_with_another_horizon_after_a_restart(connect: Opened) -> None:
    with StockServer(echo) as server:
        policy = connect(server.address)
        assert policy.infer(make_batch(1)).values.shape == (1, 3, 2)
        server.stop()
        server.infer = lambda _: {"actions": np.zeros((7, 2))}
        server.start()
        assert policy.infer(make_batch(1)).values.shape == (1, 7, 2)


def test_closing_ends_a_question_that_waits(connect: Opened) -> None:
    release = threading.Event()

    def hangs(request: dict[str, Any]) -> dict[str, Any]:
        release.wait(WAIT_S)
        return echo(request)

    with StockServer(hangs) as server, ThreadPoolExecutor() as pool:
        policy = connect(server.address)
        policy.spec  # noqa: B018 - connects
        future = pool.submit(policy.infer, make_batch(1))
        wait_until(lambda: bool(server.requests))
        policy.close()
        with pytest.raises(PolicyUnavailableError, match="closed"):
            future.result(WAIT_S)
        release.set()


@pytest.mark.parametrize("address", ["", "a:b:c", "host:8000,", "host:x/path"])
def test_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="openpi://"):
        OpenPI(address)
