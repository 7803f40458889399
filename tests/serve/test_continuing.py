"""Chunks that go on from what is committed, made by a policy on the other end of a wire."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.adapters.policies.sidecar import Sidecar, SidecarConfig
from hocket.core.contracts.policy import PREFIX, PREFIX_LENGTH
from hocket.core.data import Actions, Batch
from hocket.errors import PolicyError, UsageError
from hocket.results.report import Report
from hocket.serve.gateway import Gateway
from hocket.serve.metrics import Metrics
from support.delayed import Continuing, Waves
from support.running_server import ServePolicy, running
from support.wire_clients import Connect, make_row

STATE = "observation/state"
TESTS = Path(__file__).parents[1]


def evaluate(policy: Any, **settings: Any) -> list[Any]:
    given = {"lanes": 1, "episodes": 2, "method": "rtc", "delay": "2..4"} | settings
    report: Report = hocket.evaluate(env="support.delayed:make_holding", policy=policy, **given)
    return [(e.trial.id, e.outcome, e.steps, e.total_reward, e.chunks) for e in report.episodes]


def test_run_over_the_wire_is_the_run_in_this_process(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    served = Continuing()
    server = serve_policy(served)
    client = connect(server)
    assert client.continuations == ("rtc", "prefix")
    there = evaluate(client, rtc_config={"weight": 3.0})
    assert there == evaluate(Continuing())
    assert there != evaluate(Waves(), method="naive")
    assert (served.method, served.settings) == ("rtc", {"weight": 3.0})
    # Who says nothing of what is committed gets what the policy always answers.
    row = make_row(0)
    seen = Batch(arrays={STATE: np.ones((1, 5), np.float32)}, rows=(row,))
    assert np.array_equal(connect(server).infer(seen).values, Waves().infer(seen))
    with pytest.raises(PolicyError, match="one policy does so in one way"):
        evaluate(connect(server), rtc_config={"weight": 4.0})


class Anchored(Continuing):
    """Decides relative to what it sees, and answers with what that comes to: what is committed is
    made relative to what it sees now."""

    def infer(self, batch: Batch) -> Any:
        here = np.asarray(batch.arrays[STATE], np.float64).mean(1)[:, None, None]
        arrays = dict(batch.arrays)
        if PREFIX in arrays:
            left = np.arange(arrays[PREFIX].shape[1]) < arrays[PREFIX_LENGTH][:, None]
            arrays[PREFIX] = (arrays[PREFIX] - here) * left[:, :, None]
        return super().infer(replace(batch, arrays=arrays)) + here


class Mapped(Continuing):
    """In this process, what a mapping makes of a server's chunks of six numbers: the first four,
    clipped. It continues the chunks as the server gave them."""

    def __init__(self, server: Continuing) -> None:
        super().__init__(size=6)
        self.spec = replace(self.spec, action_size=4)
        self._server = server

    def infer(self, batch: Batch) -> Any:
        self._server.method = self.method
        if PREFIX in batch.arrays and batch.arrays[PREFIX].shape[2] == 4:
            assert not batch.arrays[PREFIX_LENGTH].any(), "nothing is committed yet"
            empty = np.zeros((len(batch.rows), 12, 6))
            batch = replace(batch, arrays={**batch.arrays, PREFIX: empty})
        chunks = self._server.infer(batch)
        values = chunks[:, :, :4].clip(-0.5, 0.5)
        return Actions(values, {PREFIX: chunks})


MAPPING = """
request:
  observation/state: {from: observation/state}
actions: {slice: [0, 4], clip: [-0.5, 0.5]}
replan: 5
"""


@pytest.mark.parametrize(("kind", "lanes"), [(Continuing, 1), (Anchored, 3)])
def test_mapping_gives_the_server_its_own_actions_back(
    serve_policy: ServePolicy,
    connect: Connect,
    tmp_path: Path,
    kind: type[Continuing],
    lanes: int,
) -> None:
    (tmp_path / "mine.yaml").write_text(MAPPING)
    client = connect(serve_policy(kind(size=6)), mapping=str(tmp_path / "mine.yaml"))
    assert client.continuations == ("rtc", "prefix")
    there = evaluate(client, lanes=lanes, episodes=3)
    assert sorted(there) == sorted(evaluate(Mapped(kind(size=6)), episodes=3))
    assert sorted(there) != sorted(evaluate(Mapped(kind(size=6)), episodes=3, method="naive"))


class Halves:
    """A mapping that leaves out every other action."""

    def request(self, observation: Any, prompt: str) -> Any:
        assert PREFIX not in observation
        return {**observation, "prompt": prompt}

    def actions(self, chunk: Any) -> Any:
        return chunk[::2]


def test_mapping_of_another_pace_cannot_continue_chunks(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    client = connect(serve_policy(Continuing()), mapping=f"{__name__}:Halves")
    report: Report = hocket.evaluate(
        env="support.delayed:make_holding",
        policy=client,
        method="rtc",
        delay="1",
        replan=4,
        lanes=1,
        episodes=1,
        retries=0,
    )
    assert report.overall.errors == 1
    assert "so that a chunk cannot be continued" in str(report.episodes[0].error)


def test_way_that_nobody_asks_for_any_more_binds_nobody(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    served = Continuing()
    server = serve_policy(served)
    first = connect(server)
    evaluate(first, rtc_config={"weight": 3.0})
    first.close()
    evaluate(connect(server), rtc_config={"weight": 4.0})
    assert served.settings == {"weight": 4.0}


def test_settings_that_a_policy_does_not_know_are_an_error_in_words(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    class Choosy(Continuing):
        def continue_by(self, method: str, settings: Any) -> None:
            raise TypeError("unexpected setting 'colour'")

    server = serve_policy(Choosy())
    client = connect(server)
    with pytest.raises(PolicyError, match="cannot continue by rtc so: unexpected setting"):
        evaluate(client)
    assert evaluate(client, method="naive") == evaluate(Waves(), method="naive")


def test_gateway_tells_its_servers(serve_policy: ServePolicy, connect: Connect) -> None:
    policies = [Continuing(), Continuing()]
    upstream = connect(*map(serve_policy, policies))
    with ExitStack() as stack:
        metrics = Metrics()
        gateway = Gateway(upstream.servers(), metrics, max_queue=64)
        client = connect(stack.enter_context(running(gateway, metrics)))
        assert evaluate(client) == evaluate(Continuing())
    assert [policy.method for policy in policies] == ["rtc", "rtc"]


def test_servers_of_policies_that_continue_nothing_are_refused(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    client = connect(serve_policy(Waves()))
    assert client.continuations == ()
    with pytest.raises(UsageError, match="cannot continue a chunk by --method rtc"):
        evaluate(client)
    assert evaluate(client, method="naive") == evaluate(Waves(), method="naive")


def test_prefix_that_is_none_is_refused_and_the_connection_stays(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    policy = Continuing()
    policy.spec = hocket.PolicySpec(
        chunk_length=12,
        action_size=4,
        inputs={STATE: hocket.ArraySpec(shape=(5,), dtype="<f4")},
    )
    client = connect(serve_policy(policy))
    rows, state = (make_row(0),), np.ones((1, 5), np.float32)
    with pytest.raises(PolicyError, match="action/prefix"):
        client.infer(Batch(arrays={STATE: state, PREFIX: np.ones((1, 4))}, rows=rows))
    assert client.infer(Batch(arrays={STATE: state}, rows=rows)).values.shape == (1, 12, 4)


@pytest.mark.slow
def test_policy_of_another_interpreter_continues_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    )
    settings = SidecarConfig(python=sys.executable)
    with closing(Sidecar("support.delayed:Continuing", settings)) as policy:
        assert evaluate(policy) == evaluate(Continuing())
