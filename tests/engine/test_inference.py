from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from hocket.core.data import Actions, Answer, Array, Batch, Chunks, Row, Trial
from hocket.core.specs import PolicySpec
from hocket.engine.inferring.inference import Inference
from hocket.engine.inferring.policy_thread import Answered, Job, PolicyThread, account
from hocket.engine.inferring.replicas import WarmedUp
from hocket.errors import ChunkShapeError
from support.processes import DEADLINE_S


class Echo:
    """Answers each row with its own state, so that a mix-up of rows shows."""

    def __init__(self, hook: Callable[[Batch], None] = lambda _: None, **spec: int) -> None:
        self.spec = PolicySpec(chunk_length=3, **spec)  # type: ignore[arg-type]
        self.hook = hook
        self.sizes: list[int] = []

    def infer(self, batch: Batch) -> Answer:
        self.sizes.append(batch.size)
        self.hook(batch)
        state: Array = batch.arrays["observation/state"]
        return np.repeat(state[:, None, :2], 3, axis=1)

    def close(self) -> None: ...


def job(count: int, number: int = 1, pad_to: int = 0) -> Job:
    rows = tuple(
        Row(
            trial=Trial(suite="s", task="t", seed=i),
            attempt=0,
            chunk=0,
            noise_seed=i,
            prompt="",
            session=f"{i}@0",
        )
        for i in range(count)
    )
    views = [{"observation/state": np.full(4, float(i))} for i in range(count)]
    return Job(number=number, queue="q", rows=rows, views=views, action_size=2, pad_to=pad_to)


def run(policy: Echo, *jobs: Job) -> list[Answered]:
    """All answers, in the order in which they came."""
    arrived = threading.Event()
    inference = Inference([policy], ["echo"])
    inference.start(arrived.set)
    for each in jobs:
        inference.submit(each)
    answers: list[Answered] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(answers) < len(jobs) and time.monotonic() < deadline:
        arrived.wait(1)
        arrived.clear()
        for answer in inference.answers():
            assert isinstance(answer, Answered)
            answers.append(answer)
    inference.close()
    assert len(answers) == len(jobs)
    return answers


def values(answer: Answered) -> list[float | None]:
    return [None if c is None else float(c.actions[0, 0]) for c in answer.chunks]


def test_each_row_gets_its_own_answer() -> None:
    (answer,) = run(Echo(), job(5))
    assert values(answer) == [0, 1, 2, 3, 4]
    assert all(chunk is not None and chunk.source == "echo" for chunk in answer.chunks)


def test_a_row_that_raises_costs_only_itself() -> None:
    def refuse(batch: Batch) -> None:
        if any(row.trial.seed == 5 for row in batch.rows):
            raise RuntimeError("cannot read this one")

    policy = Echo(refuse)
    (answer,) = run(policy, job(8))
    assert values(answer) == [0, 1, 2, 3, 4, None, 6, 7]
    assert isinstance(answer.errors[5], RuntimeError)
    assert [e is None for e in answer.errors] == [i != 5 for i in range(8)]


def test_a_row_of_nan_is_delivered_as_it_is() -> None:
    policy = Echo()
    bad = job(4)
    bad.views[2]["observation/state"][:] = np.nan
    (answer,) = run(policy, bad)
    np.testing.assert_array_equal(values(answer), [0, 1, np.nan, 3])
    assert not any(answer.errors)


def test_a_wrong_shape_is_an_error_of_all_rows_and_is_not_asked_again() -> None:
    class Wrong(Echo):
        def infer(self, batch: Batch) -> Answer:
            super().infer(batch)
            return np.zeros((batch.size, 3, 7))

    policy = Wrong()
    (answer,) = run(policy, job(4))
    assert values(answer) == [None] * 4
    assert all(isinstance(error, ChunkShapeError) for error in answer.errors)
    assert policy.sizes == [4]


def test_padding_fills_the_batch_and_its_answers_are_dropped() -> None:
    policy = Echo()
    (answer,) = run(policy, job(3, pad_to=8))
    assert policy.sizes == [8]
    assert values(answer) == [0, 1, 2]


def test_extras_are_handed_out_by_row() -> None:
    class Extra(Echo):
        def infer(self, batch: Batch) -> Answer:
            array = super().infer(batch)
            assert isinstance(array, np.ndarray)
            return Actions(array, {"value": np.arange(batch.size) * 10.0}, version=7)

    (answer,) = run(Extra(), job(3))
    assert [float(c.extras["value"]) for c in answer.chunks if c] == [0.0, 10.0, 20.0]
    assert {c.version for c in answer.chunks if c} == {7}


def test_as_many_calls_run_at_once_as_the_policy_allows() -> None:
    together = threading.Barrier(3, timeout=DEADLINE_S)
    policy = Echo(lambda _: together.wait() and None, concurrency=3)
    answers = run(policy, *(job(1, number=i) for i in range(3)))
    assert {answer.job.number for answer in answers} == {0, 1, 2}


def test_one_seat_never_calls_its_policy_twice_at_once() -> None:
    inside = threading.Lock()

    def alone(_: Batch) -> None:
        assert inside.acquire(blocking=False)
        time.sleep(0.001)
        inside.release()

    answers = run(Echo(alone), *(job(2, number=i) for i in range(20)))
    assert all(None not in answer.chunks for answer in answers)


def test_warm_up_times_every_size_after_a_call_that_does_not_count() -> None:
    policy = Echo()
    arrived = threading.Event()
    inference = Inference([policy], ["echo"])
    inference.start(arrived.set)
    inference.warm_up(job(1), [1, 2, 4])
    assert arrived.wait(DEADLINE_S)
    (answer,) = inference.answers()
    inference.close()
    assert isinstance(answer, WarmedUp)
    assert answer.error is None
    assert set(answer.latencies) == {1, 2, 4}
    assert all(policy.sizes.count(size) >= 2 for size in (1, 2, 4))


def warmed(policies: list[Echo], more: Callable[[Mapping[int, float]], int | None]) -> WarmedUp:
    arrived = threading.Event()
    inference = Inference(policies, [f"echo {n}" for n in range(len(policies))])
    inference.start(arrived.set)
    inference.warm_up(job(1), [1, 4], more)
    assert arrived.wait(DEADLINE_S)
    (answer,) = inference.answers()
    inference.close()
    assert isinstance(answer, WarmedUp)
    return answer


def test_a_warm_up_times_what_is_asked_for_next_on_every_replica() -> None:
    policies = [Echo(), Echo()]
    answer = warmed(policies, lambda timed: next((n for n in (2, 3) if n not in timed), None))
    assert set(answer.latencies) == {1, 2, 3, 4}
    assert all(set(policy.sizes) == {1, 2, 3, 4} for policy in policies)


def test_a_policy_that_compiles_for_each_size_is_not_asked_for_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hocket.engine.inferring.replicas.TIMING_S", 0.05)
    compiled = set()

    def compiles(batch: Batch) -> None:
        if batch.size not in compiled:
            compiled.add(batch.size)
            time.sleep(0.06 if batch.size > 4 else 0.0)

    answer = warmed([Echo(compiles)], lambda timed: max(timed) + 1)
    assert set(answer.latencies) == {1, 4, 5}, "the time was over after the first that was compiled"


def test_a_warm_up_that_raises_tells_so() -> None:
    def broken(_: Batch) -> None:
        raise RuntimeError("no weights")

    arrived = threading.Event()
    inference = Inference([Echo(broken)], ["echo"])
    inference.start(arrived.set)
    inference.warm_up(job(1), [1])
    assert arrived.wait(DEADLINE_S)
    (answer,) = inference.answers()
    inference.close()
    assert isinstance(answer, WarmedUp)
    with pytest.raises(RuntimeError, match="no weights"):
        raise answer.error or AssertionError


class Stateful(Echo):
    """Keeps the sessions that it was told of, and refuses some."""

    refused = "1@0"

    def __init__(self) -> None:
        super().__init__()
        self.told = threading.Event()

    def begin_session(self, row: Row) -> None:
        if row.session == self.refused:
            raise LookupError(f"no room for {row.session}")

    def end_session(self, session: str) -> None:
        self.told.set()
        raise LookupError(f"never heard of {session}")


def test_a_session_that_cannot_begin_costs_only_its_row() -> None:
    (answer,) = run(Stateful(), job(3))
    assert [chunk is None for chunk in answer.chunks] == [False, True, False]
    assert "no room for 1@0" in str(answer.errors[1])


def test_a_session_that_cannot_end_is_told_and_the_seat_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    policy, arrived = Stateful(), threading.Event()
    inference = Inference([policy], ["echo"])
    inference.start(arrived.set)
    inference.end_session("0@0")
    assert policy.told.wait(DEADLINE_S)
    inference.submit(job(1))
    assert arrived.wait(DEADLINE_S)
    inference.close()
    assert "never heard of 0@0" in caplog.text
    assert isinstance(inference.answers()[0], Answered)


def test_the_account_of_an_error_begins_where_the_policy_was_called() -> None:
    def hook(_: Batch) -> None:
        raise ValueError("depth")

    (answer,) = run(Echo(hook), job(1))
    text = account(answer.errors[0] or Exception())
    assert text.startswith("The policy raised ValueError: depth\n  File")
    assert "in hook" in text
    assert "/hocket/inference.py" not in text
    assert account(ChunkShapeError("wrong")) == "ChunkShapeError: wrong"


def warm(inference: Inference, seconds: dict[int, float]) -> None:
    """As if a warm-up had found that batches take so long."""
    inference._answers.append(WarmedUp(queue="q", latencies=seconds, error=None))
    inference.answers()


def test_brief_batches_are_answered_by_the_thread_that_asks() -> None:
    seen: list[str] = []
    inference = Inference([Echo(lambda _: seen.append(threading.current_thread().name))], ["echo"])
    assert inference.at_once(job(2)) is None  # nothing is known of it yet
    warm(inference, {1: 1e-5, 2: 2e-5, 4: 1.0})
    answer = inference.at_once(job(2))
    assert answer is not None
    assert values(answer) == [0, 1]
    assert seen == [threading.current_thread().name]
    assert inference.at_once(job(3)) is None  # no batch of this size was brief
    inference.close()


def test_a_policy_that_is_brief_no_more_goes_back_to_its_thread() -> None:
    inference = Inference([Echo(lambda _: time.sleep(0.01))], ["echo"])
    warm(inference, {4: 1e-5})
    asked = [inference.at_once(job(4)) for _ in range(5)]
    inference.close()
    assert [answer is not None for answer in asked] == [True, True, True, False, False]


def test_policies_that_keep_state_or_run_side_by_side_are_never_answered_at_once() -> None:
    class Stateful(Echo):
        def begin_session(self, row: Row) -> None: ...

        def end_session(self, session: str) -> None: ...

    for policy in (Stateful(), Echo(concurrency=2)):
        inference = Inference([policy], ["echo"])
        warm(inference, {4: 1e-5})
        assert inference.at_once(job(1)) is None


def test_an_answer_without_errors_keeps_its_columns() -> None:
    (answer,) = run(Echo(), job(4))
    assert isinstance(answer.chunks, Chunks)
    assert answer.chunks.actions.shape == (4, 3, 2)
    assert [float(chunk.actions[0, 0]) for chunk in answer.chunks] == [0, 1, 2, 3]
    assert [float(chunk.actions[0, 0]) for chunk in answer.chunks[1:3]] == [1, 2]
    assert answer.chunks.count(None) == 0


def test_buffers_are_kept_for_the_queues_that_were_served_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hocket.engine.inferring.policy_thread.BUFFERED_QUEUES", 2)
    thread = PolicyThread(Echo(), "echo")
    for queue in ("a", "b", "a", "c"):
        thread.answer(job(2)._replace(queue=queue))
    assert [*thread._buffers] == ["a", "c"]
    failed = thread.answer(job(1)._replace(queue="d", action_size=99))
    assert failed.errors[0] is not None
    assert [*thread._buffers] == ["a", "c"]
