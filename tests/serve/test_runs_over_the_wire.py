"""Whole runs against servers that misbehave: every trial is resolved, and no lane ever executes
actions that were not meant for it (each step's reward depends on every action before it, so equal
returns mean equal actions)."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import hocket.runs.evaluation as evaluation
from hocket.adapters.policies.openpi.policy import OpenPI, OpenPIConfig
from hocket.core.contracts.policy import Policy
from hocket.core.data import Actions, Batch, Outcome, Row
from hocket.core.events import ChunksExecuted, Event
from hocket.core.specs import PolicySpec
from hocket.engine.replay import ChunkReplay
from hocket.errors import PolicyUnavailableError, UsageError
from hocket.results.report import Report
from hocket.testing import ScriptedPolicy, check_policy
from support.fault_proxy import FaultProxy
from support.running_server import WAIT_S, ServePolicy
from support.stock_openpi import Infer, StockServer
from support.wire_clients import RowWise

EPISODES = 6
STATE = "observation/state"


def decide(state: np.ndarray, prompt: str, length: int = 8) -> np.ndarray:
    """Actions that every bit of the observation moves."""
    key = zlib.crc32(np.ascontiguousarray(state).tobytes() + prompt.encode())
    return np.random.default_rng(key).uniform(-1, 1, (length, 4))


def stock(request: dict[str, Any]) -> dict[str, Any]:
    return {"actions": decide(request[STATE], request["prompt"])}


def run(policy: Policy | str, **settings: Any) -> Report:
    return evaluation.evaluate(
        env="toy:count", policy=policy, episodes=EPISODES, lanes=3, seed=5, **settings
    )


def outcomes(report: Report) -> list[Any]:
    plain = report.to_json()["episodes"]
    return sorted((e["trial"], e["outcome"], e["steps"], e["return"]) for e in plain)


class Here:
    """The same decisions in this process."""

    spec = PolicySpec(chunk_length=8, action_size=4)

    def infer(self, batch: Batch) -> Actions:
        rows = zip(batch.arrays[STATE], batch.rows, strict=False)
        return Actions(np.stack([decide(state, row.prompt) for state, row in rows]))

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return outcomes(run(Here()))


@pytest.fixture
def connect() -> Iterator[Any]:
    opened: list[OpenPI] = []

    def start(address: str, **settings: Any) -> OpenPI:
        settings = {"ready_timeout_s": WAIT_S, "timeout_s": 2.0, "retries": 8, **settings}
        opened.append(OpenPI(address, OpenPIConfig(**settings)))
        return opened[-1]

    yield start
    for policy in opened:
        policy.close()


class Drifting(ScriptedPolicy):
    """Keeps a state for each attempt, which every chunk moves and every action shows."""

    def __init__(self) -> None:
        super().__init__("", ScriptedPolicy.Config(chunk_length=8, batch_invariant=True))
        self._chunks: dict[str, int] = {}

    def begin_session(self, row: Row) -> None:
        self._chunks[row.session] = 0

    def end_session(self, session: str) -> None:
        self._chunks.pop(session, None)

    def infer(self, batch: Batch) -> Any:
        values = np.array(super().infer(batch))
        for i, row in enumerate(batch.rows):
            self._chunks[row.session] = self._chunks.get(row.session, 0) + 1
            values[i] *= 1 / self._chunks[row.session]
        return values


class Interrupted(OpenPI):
    """Lets a whole other run happen in the midst of its own."""

    def __init__(self, address: str, other: Callable[[], Report]) -> None:
        super().__init__(address)
        self._other = other
        self.other: Report | None = None

    def infer(self, batch: Batch) -> Actions:
        if self.other is None and any(row.chunk == 2 for row in batch.rows):
            self.other = self._other()
        return super().infer(batch)


def test_runs_that_share_a_server_get_what_each_gets_alone(serve_policy: ServePolicy) -> None:
    address = serve_policy(Drifting()).address
    alone = outcomes(run(Drifting()))
    with (
        closing(OpenPI(address)) as inner,
        closing(Interrupted(address, lambda: run(inner))) as policy,
    ):
        report = run(policy)
    assert outcomes(report) == alone
    assert policy.other is not None
    assert outcomes(policy.other) == alone


def test_run_through_a_stock_server_equals_the_run_in_this_process(
    connect: Any, expected: list[Any]
) -> None:
    with StockServer(stock) as server:
        report = run(connect(server.address))
    assert outcomes(report) == expected
    assert report.to_json()["exactness"] == "environment"


class Restarting(StockServer):
    """Dies at its `at`-th request and comes back as another. Nobody waits for that moment: how
    long a run takes to get there says nothing."""

    def __init__(self, at: int, after: Infer) -> None:
        super().__init__(self._count)
        self._at = at
        self._after = after
        self._restart = threading.Thread(target=self._come_back)

    def _count(self, request: dict[str, Any]) -> dict[str, Any]:
        if len(self.requests) == self._at:
            self._restart.start()
        return stock(request)

    def _come_back(self) -> None:
        self.stop()
        self.infer = self._after
        self.start()

    def __exit__(self, *_: object) -> None:
        assert len(self.requests) >= self._at, "the run ended before its server died"
        self._restart.join(WAIT_S)
        super().__exit__()


def test_server_killed_and_restarted_in_the_middle(connect: Any, expected: list[Any]) -> None:
    with Restarting(12, stock) as server:
        report = run(connect(server.address))
    assert outcomes(report) == expected


@pytest.mark.parametrize("fault", ["drop", "truncate", "stall", "delay"])
def test_network_that_misbehaves_all_along(connect: Any, expected: list[Any], fault: str) -> None:
    with StockServer(stock) as server, FaultProxy(server.port) as proxy:
        turns = iter(range(10_000))

        def act_up(request: dict[str, Any]) -> dict[str, Any]:
            if next(turns) % 7 == 6:
                if fault == "drop":
                    proxy.drop_all()
                elif fault == "truncate":
                    proxy.cut_after = 30
                elif fault == "stall" and not proxy.is_stalled.is_set():
                    proxy.is_stalled.set()
                    threading.Timer(0.5, proxy.is_stalled.clear).start()
                else:
                    proxy.delay_s = 0.01
            return stock(request)

        server.infer = act_up
        given = {"timeout_s": 0.3, "retries": 60} if fault == "stall" else {}
        report = run(connect(f"127.0.0.1:{proxy.port}", **given))
    assert outcomes(report) == expected


def test_error_frames_cost_their_own_attempts_only(connect: Any, expected: list[Any]) -> None:
    turns = iter(range(10_000))

    def sometimes(request: dict[str, Any]) -> dict[str, Any]:
        if next(turns) == 9:
            raise RuntimeError("out of memory, once")
        return stock(request)

    with StockServer(sometimes) as server:
        report = run(connect(server.address))
    assert outcomes(report) == expected
    assert sum(e["attempts"] for e in report.to_json()["episodes"]) == EPISODES + 1


def test_a_server_that_answers_nan_fails_at_trials(connect: Any) -> None:
    turns = iter(range(10_000))

    def goes_wrong(request: dict[str, Any]) -> Any:
        return stock(request) if next(turns) < 10 else {"actions": np.full((8, 4), np.nan)}

    with StockServer(goes_wrong) as server:
        report = run(connect(server.address, retries=0), retries=0)
    assert not report.overall.errors
    assert any(e.diverged for e in report.episodes)
    assert all(e.outcome is Outcome.FAILURE for e in report.episodes if e.diverged)


@pytest.mark.parametrize(
    "wrong",
    [
        {"actions": np.zeros((8, 3))},
        {"actions": np.zeros((8, 4), bool)},
        {"nothing": 1},
        "an error in words",
        b"\xc1",
    ],
)
def test_wrong_answers_are_errors_and_every_trial_is_resolved(connect: Any, wrong: Any) -> None:
    turns = iter(range(10_000))

    def goes_wrong(request: dict[str, Any]) -> Any:
        return stock(request) if next(turns) < 10 else wrong

    with StockServer(goes_wrong) as server:
        report = run(connect(server.address, retries=0), retries=0)
    episodes = report.to_json()["episodes"]
    assert len(episodes) == EPISODES
    assert {e["outcome"] for e in episodes} >= {"error"}


def test_server_that_answers_another_horizon_after_a_restart(
    connect: Any,
) -> None:
    def long(request: dict[str, Any]) -> dict[str, Any]:
        return {"actions": decide(request[STATE], request["prompt"], 12)}

    with Restarting(8, long) as server:
        report = run(connect(server.address))
    episodes = report.to_json()["episodes"]
    assert len(episodes) == EPISODES
    assert all(e["outcome"] != "error" for e in episodes)


def test_run_through_hocket_s_own_server_is_the_same_to_the_bit(
    connect: Any, serve_policy: ServePolicy
) -> None:
    server = serve_policy(ScriptedPolicy())
    there = run(connect(server.address))
    here = run(ScriptedPolicy())
    assert outcomes(there) == outcomes(here)
    assert there.to_json()["exactness"] == "bitwise"


def test_client_keeps_the_contract_of_policies(connect: Any, serve_policy: ServePolicy) -> None:
    server = serve_policy(RowWise(echo_rows, chunk_length=3, action_size=1))
    example = {STATE: np.arange(4, dtype=np.float32)[:, None]}
    check_policy(connect(server.address), example, close=True)


def echo_rows(observation: dict[str, np.ndarray], _: Any) -> np.ndarray:
    return np.repeat(observation[STATE][None], 3, axis=0)


# -- Chunks of lost connections ------------------------------------------------------------------


@pytest.mark.parametrize("flushes", [True, False])
def test_remainders_of_lost_connections_are_recalled_where_that_is_asked_for(
    connect: Any, flushes: bool
) -> None:
    """One lane is deep in a long chunk when the other's question loses all connections."""
    log = Executed()
    first: list[bytes] = []
    others: set[bytes] = set()

    with StockServer(stock) as server, FaultProxy(server.port) as proxy:

        def answer(request: dict[str, Any]) -> dict[str, Any]:
            state = request[STATE].tobytes()
            first[:] = first or [state]
            if state == first[0]:
                return {"actions": decide(request[STATE], request["prompt"], LONG)}
            if state not in others and len(others) == 1:
                proxy.drop_all()
            others.add(state)
            return {"actions": decide(request[STATE], request["prompt"], 4)}

        server.infer = answer
        policy = connect(f"127.0.0.1:{proxy.port}", flush_on_reconnect=flushes)
        evaluation.evaluate(
            env="toy:count",
            policy=policy,
            episodes=2,
            lanes=2,
            env_config={"length_min": LONG, "length_max": LONG, "step_s": 0.03},
            readers=[log],
        )
        assert policy.reconnects
    assert log.steps == LONG * 2
    assert (log.longest == LONG) is not flushes


LONG = 80


class Executed:
    """A reader that counts steps, and the most that were executed of one chunk."""

    def __init__(self) -> None:
        self.steps = self.longest = 0

    def on(self, event: Event) -> None:
        if isinstance(event, ChunksExecuted):
            self.steps += sum(event.steps)
            self.longest = max(self.longest, *event.steps)

    def close(self) -> None:
        """Nothing is held."""


# -- In somebody else's loop ---------------------------------------------------------------------


@pytest.mark.parametrize("max_batch", [1, 4])
def test_drop_in_the_middle_of_a_step_mixes_nothing_and_moves_no_place(
    connect: Any, max_batch: int
) -> None:
    """Four envs in a loop of the user's; the server dies while it answers the third."""
    base = 100.0
    dies = threading.Event()
    server = StockServer(stock)

    def numbered(request: dict[str, Any]) -> dict[str, Any]:
        if dies.is_set() and request[STATE][0] == 2:
            dies.clear()
            threading.Thread(target=restart).start()
            assert server.is_dead.wait(WAIT_S)
        return {"actions": base + np.arange(3.0)[:, None]}

    def restart() -> None:
        nonlocal base
        server.stop()
        base = 200.0
        server.start()

    server.infer = numbered
    observation = {STATE: np.arange(4, dtype=np.float32)[:, None]}
    with server:
        replay = ChunkReplay(connect(server.address, max_batch=max_batch))
        for step in range(3):
            assert replay.act(observation).ravel().tolist() == [100 + step] * 4
        dies.set()
        assert replay.act(observation).ravel().tolist() == [200] * 4
        replay.reset([1])
        assert replay.act(observation).ravel().tolist() == [201, 200, 201, 201]


def test_step_that_raised_is_returned_whole_by_the_next_call(connect: Any) -> None:
    server = StockServer(lambda _: {"actions": np.arange(3.0)[:, None]})
    observation = {STATE: np.arange(4, dtype=np.float32)[:, None]}
    with server:
        policy = connect(server.address, max_batch=4, ready_timeout_s=2.0, retries=0)
        replay = ChunkReplay(policy)
        assert replay.act(observation).ravel().tolist() == [0] * 4
        replay.reset(2)
        server.stop()
        with pytest.raises(PolicyUnavailableError):
            replay.act(observation)
        server.start()
        answer = replay.act(observation).ravel().tolist()
        assert answer[2] == 0
        assert len({answer[i] for i in (0, 1, 3)}) == 1


@pytest.mark.parametrize(("settings", "rest"), [({}, 200), ({"on_reconnect": "keep"}, 101)])
def test_restart_between_two_steps_mixes_nothing_unless_that_is_asked_for(
    connect: Any, settings: dict[str, Any], rest: float
) -> None:
    server = Numbered()
    observation = {STATE: np.arange(3, dtype=np.float32)[:, None]}
    with server:
        replay = ChunkReplay(connect(server.address, max_batch=3), **settings)
        assert replay.act(observation).ravel().tolist() == [100] * 3
        server.restart(base=200.0)
        replay.reset(1)
        assert replay.act(observation).ravel().tolist() == [rest, 200, rest]


def test_restart_that_another_user_of_the_policy_met_mixes_nothing(connect: Any) -> None:
    server = Numbered()
    observation = {STATE: np.arange(3, dtype=np.float32)[:, None]}
    with server:
        policy = connect(server.address, max_batch=3)
        replay, other = ChunkReplay(policy), ChunkReplay(policy)
        assert replay.act(observation).ravel().tolist() == [100] * 3
        server.restart(base=200.0)
        assert other.act(observation).ravel().tolist() == [200] * 3
        replay.reset(1)
        assert replay.act(observation).ravel().tolist() == [200] * 3
        assert replay.act(observation).ravel().tolist() == [201] * 3


class Numbered(StockServer):
    """Answers with actions that say which start of the server they come from."""

    base = 100.0

    def __init__(self) -> None:
        super().__init__(lambda _: {"actions": self.base + np.arange(3.0)[:, None]})

    def restart(self, base: float) -> None:
        self.stop()
        self.base = base
        self.start()


def test_an_unknown_way_with_lost_connections_is_refused() -> None:
    with pytest.raises(UsageError, match="keep"):
        ChunkReplay(Here(), on_reconnect="ignore")  # type: ignore[arg-type]
