"""A policy that keeps state and raises for a batch that rows of several clients share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hocket.adapters.policies.openpi.policy import OpenPI
from hocket.core.data import Actions, Batch
from hocket.errors import PolicyError, StateMovedError
from support.processes import DEADLINE_S, wait_until
from support.running_server import Running, ServePolicy
from support.wire_clients import Connect, Stateful, make_batch, make_row

FIRST, BAD, GOOD = 1, 2, 3


class Held(Stateful):
    """Holds each batch with the row FIRST until it is let go, so that others wait together; raises
    for those with the row BAD, after the state of all rows has moved."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Semaphore(0)
        self.batches: list[list[int]] = []

    def infer(self, batch: Batch) -> Actions:
        seeds = sorted(row.trial.seed for row in batch.rows)
        self.batches.append(seeds)
        answer = super().infer(batch)
        if FIRST in seeds:
            assert self.go.acquire(timeout=DEADLINE_S)
        if BAD in seeds:
            raise RuntimeError("This row cannot be answered.")
        return answer


def ask_together(
    pool: ThreadPoolExecutor, server: Running, policy: Held, clients: dict[int, OpenPI]
) -> dict[int, BaseException | None]:
    """Let all ask for their first chunks while the policy is held; what came of BAD and GOOD."""
    for seed, client in clients.items():
        client.begin_session(make_row(seed))
    asked = {FIRST: pool.submit(clients[FIRST].infer, make_batch(FIRST))}
    before = len(policy.batches)
    wait_until(lambda: len(policy.batches) > before)
    for seed in (BAD, GOOD):
        asked[seed] = pool.submit(clients[seed].infer, make_batch(seed))
    wait_until(lambda: server.metrics.queue_depth == 2)
    policy.go.release()
    found = {seed: asked[seed].exception(DEADLINE_S) for seed in (BAD, GOOD)}
    for seed, client in clients.items():
        client.end_session(f"session {seed}")
    return found


@pytest.mark.timeout(4 * DEADLINE_S)
def test_a_row_of_one_client_costs_the_others_no_retry(
    serve_policy: ServePolicy, connect: Connect
) -> None:
    policy = Held()
    server = serve_policy(policy)
    clients = {seed: connect(server) for seed in (FIRST, BAD, GOOD)}
    with ThreadPoolExecutor(3) as pool:
        found = ask_together(pool, server, policy, clients)
        assert policy.batches[-1] == [BAD, GOOD]
        # Neither is blamed: an engine runs both attempts again.
        assert {type(error) for error in found.values()} == {StateMovedError}

        found = ask_together(pool, server, policy, clients)
        assert sorted(policy.batches[-2:]) == [[BAD], [GOOD]]
        assert found[GOOD] is None
        assert isinstance(found[BAD], PolicyError)
        assert not isinstance(found[BAD], StateMovedError)

        # The culprit is alone for good, so that it never moves another's state again.
        found = ask_together(pool, server, policy, clients)
        assert sorted(policy.batches[-2:]) == [[BAD], [GOOD]]
        assert found[GOOD] is None
