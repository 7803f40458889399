"""Isaac Lab's envs as rows, on a stand-in for its step and its managers."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import hocket
from hocket.adapters.envs.isaaclab import IsaacLab, IsaacLabConfig, IsaacRows
from hocket.core.data import Array
from hocket.errors import ConfigError, EnvError
from hocket.testing import check_batched
from support.isaac_stand_in import StandIn

ROWS = 5


class Recorded(StandIn):
    """With a recorder manager, which adds to the episodes of all rows where it is not told which,
    and exports those of rows that are reset."""

    made: ClassVar[list[Recorded]] = []

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.made.append(self)
        self.recorder_manager = SimpleNamespace(active_terms=[1], add_to_episodes=self._record)
        self.exported, self.episodes = list[Any](), [list[Any]() for _ in range(rows)]

    def step(self, action: Any) -> Any:
        self.recorder_manager.add_to_episodes("actions", action.clone())
        return super().step(action)

    def _record(self, key: str, value: Any, env_ids: Any) -> None:
        for place, row in enumerate(env_ids.tolist()):
            self.episodes[row].append(value[place].clone())

    def _reset_idx(self, ids: Any) -> None:
        for row in ids.tolist():
            self.exported.append((row, len(self.episodes[row])))
            self.episodes[row] = []
        super()._reset_idx(ids)


def rows_of(env: StandIn, seeds: tuple[int, ...] = (3, 4, 5, 6, 7)) -> IsaacRows:
    rows = IsaacRows(env, "task", "success")
    rows.reset(np.arange(len(seeds)), ["task"] * len(seeds), seeds)
    return rows


def actions(turn: int) -> Array:
    return np.sin(np.arange(ROWS * 2) + turn).reshape(ROWS, 2).astype(np.float32)


def play(rows: IsaacRows, steps: int, waits: float) -> list[list[Any]]:
    """What each row sees and earns in its own steps, while rows wait at random."""
    rng, done = np.random.default_rng(), np.zeros(ROWS, np.int64)
    told: list[list[Any]] = [[] for _ in range(ROWS)]
    while (done < steps).any():
        active = (rng.random(ROWS) >= waits) & (done < steps)
        if not active.any():
            continue
        given = np.stack([actions(turn)[row] for row, turn in enumerate(done.tolist())])
        result = rows.step(given, active)
        seen = rows.observe(np.arange(ROWS))["observation/policy"]
        for row in np.flatnonzero(active).tolist():
            told[row].append((seen[row].tolist(), float(result.rewards[row])))
        done += active
    return told


def test_rows_that_wait_at_random_are_equal_to_the_bit_to_rows_that_never_do() -> None:
    expected = play(rows_of(StandIn(ROWS)), 60, waits=0.0)
    rows = rows_of(StandIn(ROWS))
    assert play(rows, 60, waits=0.5) == expected
    # The episode before leaves nothing behind.
    rows.reset(np.arange(ROWS), ["task"] * ROWS, [3, 4, 5, 6, 7])
    assert play(rows, 60, waits=0.9) == expected


def test_the_stand_in_keeps_the_rules_of_batched_simulators() -> None:
    check_batched(lambda rows: IsaacRows(StandIn(rows), "task", "success"), rows=ROWS)


def test_a_row_moves_as_it_moves_alone() -> None:
    alone = IsaacRows(StandIn(1), "task", "success")
    alone.reset(np.array([0]), ["task"], [5])
    expected = play(rows_of(StandIn(ROWS)), 30, waits=0.5)[2]
    for turn, (seen, _) in enumerate(expected):
        alone.step(actions(turn)[[2]], np.ones(1, np.bool_))
        assert alone.observe(np.array([0]))["observation/policy"][0].tolist() == seen


def test_the_same_env_moves_rows_that_are_held_under_an_action() -> None:
    env = StandIn(ROWS)
    env.reset(seed=0)
    before = env.pose.clone()
    env.step(torch.zeros(ROWS, 2))
    assert not (env.pose == before).any()


def test_the_recorder_gets_the_rows_that_moved_and_no_others() -> None:
    env = Recorded(ROWS)
    rows = rows_of(env)
    for turn in range(12):
        rows.step(actions(turn), np.arange(ROWS) % 3 != turn % 3)
    assert [len(steps) for steps in env.episodes] == [8] * ROWS
    taken = [turn for turn in range(12) if turn % 3 != 1]
    assert all(
        np.allclose(value, actions(turn)[1])
        for value, turn in zip(env.episodes[1], taken, strict=True)
    )
    assert env.exported[-ROWS:] == [(row, 0) for row in range(ROWS)]


def test_rows_that_end_are_not_reset_by_the_env_itself() -> None:
    env = StandIn(ROWS, limit=5)
    rows = rows_of(env)
    for _ in range(5):
        result = rows.step(actions(0), np.ones(ROWS, np.bool_))
    assert result.truncated.all()
    assert env.own_resets == 0
    assert env.episode_length_buf.tolist() == [5] * ROWS


def test_rows_are_put_back_even_where_the_step_raises() -> None:
    env = StandIn(ROWS)
    rows = rows_of(env)
    before = env.pose.clone()

    def broken() -> None:
        raise RuntimeError("broken")

    env._observe = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="broken"):
        rows.step(actions(0), np.array([True, False, True, True, False]))
    assert (env.pose == before).all(dim=1).tolist() == [False, True, False, False, True]


def test_a_direct_env_is_refused_in_words() -> None:
    env = StandIn(ROWS)
    del env.termination_manager
    with pytest.raises(EnvError, match="no ManagerBasedRLEnv"):
        IsaacRows(env, "task", "success")


class Steer:
    """Chunks of five that follow from what is seen."""

    def __init__(self) -> None:
        self.spec = hocket.PolicySpec(chunk_length=5, action_size=2, max_batch=8)

    def infer(self, batch: hocket.Batch) -> hocket.Actions:
        seen = batch.arrays["observation/policy"]
        push = 2.0 + np.sin(seen.sum(axis=1))
        return hocket.Actions(np.repeat(np.repeat(push[:, None, None], 5, 1), 2, 2))

    def close(self) -> None:
        """Nothing to let go of."""


class Watched(StandIn):
    """Writes down in which steps cameras are drawn."""

    told: ClassVar[list[bool]] = []

    def step(self, action: Any) -> Any:
        self.told.append(self.render_enabled)
        return super().step(action)

    def _reset_idx(self, ids: Any) -> None:
        assert self.render_enabled
        super()._reset_idx(ids)


def test_cameras_are_drawn_once_a_chunk() -> None:
    Watched.told.clear()
    report = hocket.evaluate(
        env=f"isaaclab:{__name__}:Watched", policy=Steer(), lanes=1, episodes=1
    )
    first, *others = Watched.told  # The first is made before there is an episode.
    steps = report.episodes[0].steps
    assert first
    assert steps > 5
    assert others == ([False] * 4 + [True]) * (steps // 5) + [False] * (steps % 5)


def test_an_evaluation_runs_on_its_rows() -> None:
    report = hocket.evaluate(
        env=f"isaaclab:{__name__}:Recorded", policy=Steer(), lanes=3, episodes=7
    )
    assert report.overall.n == 7
    assert report.overall.rate == 1.0
    env = Recorded.made[-1]
    counts = [count for _, count in env.exported] + [len(steps) for steps in env.episodes]
    by_hocket = sorted(episode.steps for episode in report.episodes)
    assert sorted(count for count in counts if count) == by_hocket


def test_the_name_must_be_a_factorys() -> None:
    with pytest.raises(ConfigError, match="make\\(rows\\)"):
        IsaacLab("Isaac-Lift-Cube-v0", IsaacLabConfig())


def test_isaac_sim_is_built_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = IsaacLab("support.isaac_stand_in:StandIn", IsaacLabConfig())
    suite.make_rows("task", 2)
    suite.make_rows("task", 2)
    monkeypatch.setitem(sys.modules, "isaacsim", sys)
    with pytest.raises(EnvError, match="hocket resume"):
        suite.make_rows("task", 2)
