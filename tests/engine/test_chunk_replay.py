"""ChunkReplay in somebody else's loop: places, resets, failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hocket.core.data import Batch, Row
from hocket.core.specs import ArraySpec, PolicySpec
from hocket.engine.replay import ChunkReplay
from hocket.errors import (
    ChunkShapeError,
    ChunkValueError,
    ConfigError,
    ObservationError,
    UsageError,
)


class Counting:
    """Answers [100 * state + place, noise seed's last digits] and keeps what it was asked."""

    def __init__(self, length: int = 4, **spec: Any) -> None:
        self.spec = PolicySpec(chunk_length=length, **{"action_size": 2, **spec})
        self.batches: list[Batch] = []
        self.fail: Callable[[Batch], None] = lambda batch: None
        self.bias = 0.0

    def infer(self, batch: Batch) -> Any:
        self.batches.append(batch)
        self.fail(batch)
        state = batch.arrays["observation/state"].reshape(batch.size, -1)[:, -1]
        values = np.zeros((batch.size, self.spec.chunk_length, 2))
        values[:, :, 0] = 100 * state[:, None] + np.arange(self.spec.chunk_length) + self.bias
        values[:, :, 1] = np.array([row.noise_seed % 1000 for row in batch.rows])[:, None]
        return values

    def close(self) -> None:
        self.batches.clear()

    @property
    def asked(self) -> list[list[str]]:
        return [[row.trial.task for row in batch.rows] for batch in self.batches]


def states(*values: float) -> dict[str, Any]:
    return {"observation/state": np.array(values)[:, None]}


def raises(error: BaseException) -> Callable[[Batch], None]:
    def fail(batch: Batch) -> None:
        raise error

    return fail


def test_a_chunk_is_replayed_action_by_action_with_one_inference() -> None:
    policy = Counting()
    replay = ChunkReplay(policy)
    firsts = [replay.act(states(1, 2))[:, 0].tolist() for _ in range(4)]
    assert firsts == [[100, 200], [101, 201], [102, 202], [103, 203]]
    assert len(policy.batches) == 1
    replay.act(states(1, 2))
    assert len(policy.batches) == 2


def test_actions_are_float32_numpy() -> None:
    actions = ChunkReplay(Counting()).act(states(1, 2, 3))
    assert isinstance(actions, np.ndarray)
    assert actions.dtype == np.float32
    assert actions.shape == (3, 2)


@pytest.mark.parametrize(
    "ids", [1, [1], (1,), np.array([1]), np.int64(1), [False, True, False], {1}, range(1, 2)]
)
def test_a_partial_reset_asks_again_for_those_envs_only(ids: Any) -> None:
    policy = Counting()
    replay = ChunkReplay(policy)
    replay.act(states(1, 2, 3))
    replay.reset(ids)
    assert replay.act(states(1, 5, 3))[:, 0].tolist() == [101, 500, 301]
    assert policy.asked == [["env-0", "env-1", "env-2"], ["env-1"]]


@pytest.mark.parametrize("kind", ["index", "mask"])
@pytest.mark.heavy
def test_resets_take_tensors(kind: str) -> None:
    torch = pytest.importorskip("torch")
    policy = Counting()
    replay = ChunkReplay(policy)
    replay.act(states(1, 2))
    replay.reset(torch.tensor([1]) if kind == "index" else torch.tensor([False, True]))
    assert replay.act(states(1, 5))[:, 0].tolist() == [101, 500]


def test_reset_of_nothing_clears_nothing_and_of_none_clears_all() -> None:
    policy = Counting()
    replay = ChunkReplay(policy)
    replay.reset()
    replay.act(states(1, 2))
    replay.reset([])
    assert replay.act(states(7, 7))[:, 0].tolist() == [101, 201]
    replay.reset()
    assert replay.act(states(7, 8))[:, 0].tolist() == [700, 800]


@pytest.mark.parametrize("ids", [2, -1, [0, 9], [True], np.ones(3, bool), 0.5, "0", True])
def test_wrong_ids_are_refused_and_change_nothing(ids: Any) -> None:
    replay = ChunkReplay(Counting())
    replay.act(states(1, 2))
    with pytest.raises(UsageError):
        replay.reset(ids)
    assert replay.act(states(1, 2))[:, 0].tolist() == [101, 201]


def test_a_changed_number_of_envs_is_an_error_that_names_both() -> None:
    replay = ChunkReplay(Counting())
    replay.act(states(1, 2))
    with pytest.raises(UsageError, match=r"3 envs; the first call had 2"):
        replay.act(states(1, 2, 3))
    assert replay.act(states(1, 2))[:, 0].tolist() == [101, 201]
    assert replay.num_envs == 2


def test_envs_out_of_step_are_asked_for_apart() -> None:
    policy = Counting(length=3)
    replay = ChunkReplay(policy)
    replay.act(states(1, 2))
    replay.reset(0)
    for _ in range(6):
        replay.act(states(1, 2))
    assert policy.asked[1:] == [["env-0"], ["env-1"], ["env-0"], ["env-1"]]


def test_batches_keep_to_the_policys_limit() -> None:
    policy = Counting(max_batch=2)
    actions = ChunkReplay(policy).act(states(1, 2, 3, 4, 5))
    assert [batch.size for batch in policy.batches] == [2, 2, 1]
    assert actions[:, 0].tolist() == [100, 200, 300, 400, 500]


@pytest.mark.parametrize(
    "error", [RuntimeError("x"), KeyboardInterrupt(), ConnectionResetError(), SystemExit()]
)
def test_a_failed_call_advances_nothing_and_its_retry_returns_the_same(
    error: BaseException,
) -> None:
    policy, twin = Counting(max_batch=1), Counting(max_batch=1)
    replay, unbroken = ChunkReplay(policy), ChunkReplay(twin)
    for each in (replay, unbroken):
        each.act(states(1, 2, 3))
        each.act(states(1, 2, 3))
        each.reset([0, 2])
    policy.fail = lambda batch: (
        raises(error)(batch) if batch.rows[0].trial.task == "env-2" else None
    )
    for _ in range(2):
        with pytest.raises(type(error)):
            replay.act(states(4, 5, 6))
    policy.fail = lambda batch: None
    for state in range(8):
        expected = unbroken.act(states(state, 5, 6))
        np.testing.assert_array_equal(replay.act(states(state, 5, 6)), expected)


def test_answers_from_before_and_after_a_lost_connection_never_share_a_set() -> None:
    policy = Counting()
    replay = ChunkReplay(policy)
    replay.act(states(1, 2))
    replay.act(states(1, 2))
    replay.reset(0)
    policy.fail = raises(ConnectionResetError())
    with pytest.raises(ConnectionResetError):
        replay.act(states(3, 4))
    policy.fail = lambda batch: None
    policy.bias = 0.5  # Another server answers now.
    assert replay.act(states(3, 4))[:, 0].tolist() == [300.5, 202.5]
    policy.bias = 0.0
    assert replay.act(states(3, 4))[:, 0].tolist() == [301.5, 203.5]


def test_after_a_lost_connection_unkeyed_noise_is_asked_for_from_what_is_seen_now() -> None:
    policy = Counting(keyed_noise=False)
    replay = ChunkReplay(policy)
    replay.act(states(1, 2))
    replay.reset(0)
    policy.fail = raises(EOFError())
    with pytest.raises(EOFError):
        replay.act(states(3, 4))
    policy.fail = lambda batch: None
    assert replay.act(states(3, 4))[:, 0].tolist() == [300, 400]


def test_an_error_of_another_kind_asks_only_for_what_was_used_up() -> None:
    policy = Counting()
    replay = ChunkReplay(policy)
    replay.act(states(1, 2))
    replay.reset(0)
    policy.fail = raises(RuntimeError())
    with pytest.raises(RuntimeError):
        replay.act(states(1, 2))
    policy.fail = lambda batch: None
    replay.act(states(1, 2))
    assert policy.asked[1:] == [["env-0"], ["env-0"]]


def test_the_ensemble_starts_anew_after_a_lost_connection() -> None:
    policy = Counting(length=3)
    replay = ChunkReplay(policy, ensemble=0.0)
    replay.act(states(1))
    policy.fail = raises(ConnectionError())
    with pytest.raises(ConnectionError):
        replay.act(states(2))
    policy.fail = lambda batch: None
    assert replay.act(states(2))[0, 0] == 200.0
    assert replay.act(states(2))[0, 0] == pytest.approx((201 + 200) / 2)


def test_a_nan_answer_is_refused_naming_the_env_and_nothing_advances() -> None:
    policy = Counting()
    replay = ChunkReplay(policy)
    replay.act(states(1, 2))
    replay.reset(1)
    with pytest.raises(ChunkValueError, match=r"envs \[1\]"):
        replay.act(states(1, np.nan))
    assert replay.act(states(1, 9))[:, 0].tolist() == [101, 900]


def test_replan_executes_the_first_actions_only() -> None:
    replay = ChunkReplay(Counting(), replan=2)
    firsts = [replay.act(states(state))[0, 0] for state in (1, 2, 3)]
    assert firsts == [100, 101, 300]


def test_the_policys_own_replan_is_the_default() -> None:
    replay = ChunkReplay(Counting(replan=1))
    assert [replay.act(states(state))[0, 0] for state in (1, 2)] == [100, 200]


def test_replan_longer_than_the_chunk_is_an_error_and_bad_values_are_too() -> None:
    with pytest.raises(ChunkShapeError, match=r"9 actions.*has 4"):
        ChunkReplay(Counting(), replan=9).act(states(1))
    with pytest.raises(ConfigError):
        ChunkReplay(Counting(), replan=0)


def test_an_answer_whose_action_size_changes_is_refused() -> None:
    policy = Counting(action_size=None)
    replay = ChunkReplay(policy, replan=1)
    replay.act(states(1))
    policy.infer = lambda batch: np.zeros((1, 4, 3))  # type: ignore[method-assign]
    with pytest.raises(ChunkShapeError):
        replay.act(states(1))


def test_prompts_come_from_the_call_the_observation_or_the_constructor() -> None:
    policy = Counting(length=1)
    replay = ChunkReplay(policy, prompts="default")
    replay.act(states(1, 2))
    replay.act({**states(1, 2), "prompt": ["a", "b"]})
    replay.act({**states(1, 2), "prompt": np.array(["a", "b"])}, prompts=("c", "d"))
    assert [[row.prompt for row in batch.rows] for batch in policy.batches] == [
        ["default", "default"],
        ["a", "b"],
        ["c", "d"],
    ]
    with pytest.raises(UsageError, match="prompts"):
        replay.act(states(1, 2), prompts=["only one"])


def test_nested_dicts_become_slash_keys_and_only_what_the_policy_reads_is_sent() -> None:
    inputs = {"observation/state": ArraySpec(shape=(1,), dtype="float64")}
    policy = Counting(inputs=inputs)
    replay = ChunkReplay(policy)
    replay.act({"observation": {"state": [[1.0]], "image": np.zeros((1, 2, 2, 3), np.uint8)}})
    assert list(policy.batches[0].arrays) == ["observation/state"]
    with pytest.raises(ObservationError, match=r"reads 'observation/state'.*has: joints"):
        replay.act({"joints": np.zeros((1, 1))})


def test_short_keys_and_plain_arrays_are_read_as_envs_own_are() -> None:
    inputs = {"observation/state": ArraySpec(shape=(1,), dtype="float64")}
    assert ChunkReplay(Counting(inputs=inputs)).act({"state": np.ones((1, 1))})[0, 0] == 100
    assert ChunkReplay(Counting()).act(np.ones((1, 1)))[0, 0] == 100


@pytest.mark.parametrize(
    "obs",
    [
        [1.0, 2.0],
        {},
        {"a": np.zeros((0, 2))},
        {"a": np.zeros(2), "b": np.zeros(3)},
        {"a": 1.0},
        {"a": ["x", "y"]},
    ],
)
def test_what_is_no_stacked_observation_is_refused(obs: Any) -> None:
    with pytest.raises(UsageError):
        ChunkReplay(Counting()).act(obs)


@pytest.mark.heavy
def test_tensors_in_give_a_tensor_back() -> None:
    torch = pytest.importorskip("torch")
    replay = ChunkReplay(Counting())
    actions = replay.act({"observation/state": torch.tensor([[1.0], [2.0]], requires_grad=True)})
    assert isinstance(actions, torch.Tensor)
    assert actions.dtype == torch.float32
    assert actions[:, 0].tolist() == [100, 200]


def test_noise_is_keyed_by_env_episode_and_chunk_and_by_nothing_else() -> None:
    def seeds(order: list[list[int]]) -> dict[tuple[str, int, int], int]:
        policy = Counting(length=2)
        replay = ChunkReplay(policy, seed=3)
        for resets in order:
            replay.act(states(1, 2))
            replay.reset(resets)
            replay.reset(resets)  # Resetting what has not acted is no new episode.
        rows = [row for batch in policy.batches for row in batch.rows]
        return {(row.trial.task, row.trial.repeat, row.chunk): row.noise_seed for row in rows}

    together, apart = seeds([[], [], [0, 1], [], []]), seeds([[1], [], [0], [], [0], []])
    shared = set(together) & set(apart)
    assert ("env-1", 1, 0) in shared
    assert all(together[key] == apart[key] for key in shared)
    assert len(set(together.values())) == len(together)


class Remembering(Counting):
    """Keeps sessions, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    def begin_session(self, row: Row) -> None:
        self.log.append(f"begin {row.session}")

    def end_session(self, session: str) -> None:
        self.log.append(f"end {session}")


def test_sessions_are_told_of_each_episode_once() -> None:
    policy = Remembering()
    with ChunkReplay(policy) as replay:
        for _ in range(6):
            replay.act(states(1, 2))
        replay.reset(1)
        replay.act(states(1, 2))
    one, two, three = "loop/env-0/0", "loop/env-1/0", "loop/env-1/0.1"
    said, loops = zip(*(line.split(" of ") for line in policy.log), strict=True)
    assert said == (
        *(f"begin {one}", f"begin {two}", f"end {two}", f"begin {three}"),
        *(f"end {one}", f"end {three}"),
    )
    assert len(set(loops)) == 1


def test_history_is_of_control_steps_padded_with_the_first_and_cleared_by_reset() -> None:
    policy = Counting(length=2, history=3)
    replay = ChunkReplay(policy)
    for state in range(1, 6):
        replay.act(states(state, 10 * state))
        if state == 3:
            replay.reset(1)
    seen = [
        (row.trial.task, batch.arrays["observation/state"][place].ravel().tolist())
        for batch in policy.batches
        for place, row in enumerate(batch.rows)
    ]
    assert [states_ for task, states_ in seen if task == "env-0"] == [
        [1, 1, 1], [1, 2, 3], [3, 4, 5]
    ]  # fmt: skip
    assert [states_ for task, states_ in seen if task == "env-1"] == [
        [10, 10, 10], [10, 20, 30], [40, 40, 40]
    ]  # fmt: skip


def test_a_retry_does_not_lengthen_the_history() -> None:
    policy = Counting(length=1, history=2)
    replay = ChunkReplay(policy)
    replay.act(states(1))
    policy.fail = raises(RuntimeError())
    with pytest.raises(RuntimeError):
        replay.act(states(2))
    policy.fail = lambda batch: None
    replay.act(states(2))
    assert policy.batches[-1].arrays["observation/state"].ravel().tolist() == [1, 2]


def test_later_changes_of_the_callers_arrays_do_not_reach_a_chunk_asked_for_again() -> None:
    policy = Counting()
    replay = ChunkReplay(policy)
    buffer = states(1, 2)
    replay.act(buffer)
    buffer["observation/state"][:] = 9
    replay.reset(0)
    policy.fail = raises(ConnectionError())
    with pytest.raises(ConnectionError):
        replay.act(buffer)
    policy.fail = lambda batch: None
    assert replay.act(buffer)[:, 0].tolist() == [900, 201]
