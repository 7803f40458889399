from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hocket.core.data import Chunk, Episode, Outcome, Trial
from hocket.core.events import (
    AttemptFailed,
    AttemptsBegan,
    BatchInferred,
    ChunksExecuted,
    EpisodesEnded,
)
from hocket.errors import ConfigError, EnvError
from hocket.train.algorithms.stretches import Stretch
from hocket.train.collect.curriculum import Curriculum
from hocket.train.collect.plan import (
    Groups,
    evaluation_trials,
    is_evaluation,
)
from hocket.train.collect.trajectories import Trajectories
from hocket.train.config import TrainConfig
from hocket.train.rewards import Rewards
from support.trajectories import stretch

TRIAL = Trial(suite="toy", task="count", seed=1)
LENGTH = 4


class Engine:
    """Tells trajectories what the engine would."""

    def __init__(self, reward: str = "env", **config: Any) -> None:
        self.newest = 0
        run = TrainConfig(env=("toy",), policy="actor", **config)
        self.trajectories = Trajectories(
            run, ("count",), newest=lambda: self.newest, rewards=Rewards(reward)
        )

    def begin(self, trial: Trial = TRIAL, attempt: int = 0) -> None:
        self.trajectories.on(AttemptsBegan(time=0, lanes=[3], trials=[trial], attempts=[attempt]))

    def infer(self, chunk: int, version: int = 0, attempt: int = 0) -> list[Stretch]:
        extras = {
            "sample": np.full((LENGTH, 2), chunk, np.float32),
            "log_prob": np.full(LENGTH, -1.0, np.float32),
            "value": np.float32(chunk),
            "version": np.int64(version),
        }
        delivered = Chunk(actions=extras["sample"], version=version, source="", extras=extras)
        return self.trajectories.on(
            BatchInferred(
                time=0,
                batch=0,
                began=0,
                ended=0,
                lanes=[3],
                trials=[TRIAL],
                attempts=[attempt],
                chunks=[chunk],
                delivered=[delivered],
                ready=[0],
                size=1,
                observations={"observation/state": np.full((1, 3), chunk, np.float32)},
            )
        )

    def execute(
        self,
        chunk: int,
        steps: int = LENGTH,
        *,
        terminated: bool = False,
        truncated: bool = False,
    ) -> None:
        final = {"observation/state": np.full(3, 99, np.float32)}
        self.trajectories.on(
            ChunksExecuted(
                time=0,
                lanes=[3],
                trials=[TRIAL],
                attempts=[0],
                chunks=[chunk],
                steps=[steps],
                rewards=[np.ones(steps)],
                terminated=[terminated],
                truncated=[truncated],
                busy=[0],
                observed=[0],
                final=[final if terminated or truncated else None],
            )
        )

    def end(self, outcome: Outcome = Outcome.SUCCESS, **ends: bool) -> Stretch | None:
        episode = Episode(
            trial=TRIAL, attempt=0, outcome=outcome, steps=0, total_reward=0.0, **ends
        )
        self.trajectories.on(EpisodesEnded(time=0, lanes=[3], episodes=[episode]))
        return self.trajectories.seal(episode)


def test_an_episode_becomes_one_row_for_each_executed_chunk() -> None:
    engine = Engine()
    engine.begin()
    engine.infer(0)
    engine.execute(0)
    engine.infer(1, version=1)
    engine.execute(1, 2, terminated=True)
    made = engine.end(terminated=True)
    assert made is not None
    assert made.executed.tolist() == [LENGTH, 2]
    assert made.rewards.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert made.version.tolist() == [0, 1]
    assert (made.terminated, made.truncated, made.success, made.lane) == (True, False, True, 3)


def test_a_truncated_episode_keeps_its_final_observation_and_not_the_next_ones() -> None:
    engine = Engine()
    engine.begin()
    engine.infer(0)
    engine.execute(0, truncated=True)
    made = engine.end(Outcome.FAILURE, truncated=True)
    assert made is not None
    assert made.final is not None
    assert made.final["observation/state"].tolist() == [99, 99, 99]
    assert not made.terminated


def test_the_reward_of_success_is_one_at_the_last_executed_step() -> None:
    engine = Engine(reward="success")
    engine.begin()
    engine.infer(0)
    engine.execute(0, 3, terminated=True)
    made = engine.end(terminated=True)
    assert made is not None
    assert made.rewards.tolist() == [[0, 0, 1, 0]]


def test_an_env_without_success_cannot_be_rewarded_by_it() -> None:
    engine = Engine(reward="success")
    engine.begin()
    engine.infer(0)
    engine.execute(0, terminated=True)
    with pytest.raises(ConfigError, match="--reward env"):
        engine.end(Outcome.FINISHED, terminated=True)


def test_a_lost_attempt_leaves_nothing_to_learn_from() -> None:
    engine = Engine()
    engine.begin()
    engine.infer(0)
    engine.execute(0)
    engine.trajectories.on(
        AttemptFailed(time=0, lane=3, trial=TRIAL, attempt=0, error="", again=True)
    )
    assert engine.trajectories.in_flight == 0
    engine.begin(attempt=1)
    assert engine.infer(0, attempt=1) == []


def test_stretches_end_with_the_observation_that_follows_them() -> None:
    engine = Engine(segment_chunks=2)
    engine.begin()
    for chunk in range(2):
        assert engine.infer(chunk) == []
        engine.execute(chunk)
    (cut,) = engine.infer(2)
    assert cut.chunk.tolist() == [0, 1]
    assert not cut.is_end
    assert cut.final is not None
    assert cut.final["observation/state"].tolist() == [2, 2, 2]
    engine.execute(2, terminated=True)
    last = engine.end(terminated=True)
    assert last is not None
    assert last.chunk.tolist() == [2]


def test_an_episode_is_cut_rather_than_left_to_become_too_old() -> None:
    engine = Engine(mode="async", max_staleness=2)
    engine.begin()
    engine.infer(0, version=4)
    engine.execute(0)
    assert engine.infer(1, version=5) == []
    engine.execute(1)
    (cut,) = engine.infer(2, version=6)
    assert cut.version.tolist() == [4, 5]
    assert engine.trajectories.floor == 0  # `newest` of this engine
    engine.newest = 9
    assert engine.trajectories.floor == 6


def test_the_floor_counts_attempts_before_their_first_chunk_and_ended_ones_until_sealed() -> None:
    engine = Engine()
    engine.newest = 3
    engine.begin()
    engine.newest = 5
    assert engine.trajectories.floor == 3
    engine.infer(0, version=4)
    assert engine.trajectories.floor == 4
    engine.execute(0, terminated=True)
    episode = Episode(
        trial=TRIAL,
        attempt=0,
        outcome=Outcome.SUCCESS,
        steps=4,
        total_reward=0.0,
        terminated=True,
    )
    engine.trajectories.on(EpisodesEnded(time=0, lanes=[3], episodes=[episode]))
    assert engine.trajectories.floor == 4
    engine.trajectories.seal(episode)
    assert engine.trajectories.floor == 5


def test_evaluations_are_the_same_starts_every_time_and_never_trained_on() -> None:
    tasks = [("toy", "count"), ("toy", "image")]
    first, second = (evaluation_trials(tasks, n, 7, 3) for n in (0, 1))
    assert [(t.task, t.seed) for t in first] == [(t.task, t.seed) for t in second]
    assert not {t.id for t in first} & {t.id for t in second}
    assert all(is_evaluation(t) for t in first)
    curriculum = Curriculum(tasks, 0)
    trained = [curriculum.next_group()[0] for _ in range(6)]
    assert not any(is_evaluation(t) for t in trained)
    assert not {t.seed for t in trained} & {t.seed for t in first}
    assert [t.task for t in trained[:2]] == ["count", "image"]


def test_ranks_share_the_plan_without_overlap() -> None:
    tasks = [("toy", "count"), ("toy", "image"), ("toy", "plain")]
    alone = Curriculum(tasks, 0)
    wanted = {alone.next_group()[0].id for _ in range(8)}
    shared = [Curriculum(tasks, 0, rank=rank, ranks=2) for rank in range(2)]
    assert {one.next_group()[0].id for one in shared for _ in range(4)} == wanted


def test_a_group_is_one_start_many_times() -> None:
    group = Curriculum([("toy", "count")], 0, group=4).next_group()
    assert {(t.task, t.seed) for t in group} == {("count", group[0].seed)}
    assert [t.repeat for t in group] == [0, 1, 2, 3]


def member(repeat: int, total: float, start: float = 0.0) -> Stretch:
    made = stretch(np.random.default_rng(0), chunks=1, seed=4, repeat=repeat)
    made.observation["observation/state"][:] = start
    made.rewards[:] = 0.0
    made.rewards[0, 0] = total
    return made


def test_groups_are_kept_only_where_outcomes_differ() -> None:
    for totals, kept in (((1, 0, 1), True), ((1, 1, 1), False), ((0, 0, 0), False)):
        groups = Groups(3)
        members = [member(i, total) for i, total in enumerate(totals)]
        verdicts = [groups.add(m.trial, m) for m in members]
        assert verdicts[:2] == [None, None]
        assert verdicts[2] is not None
        assert verdicts[2].is_kept is kept
        assert groups.waiting == []


def test_a_member_lost_to_errors_does_not_hold_up_its_group() -> None:
    groups = Groups(3)
    for i, total in enumerate((1, 0)):
        assert groups.add(member(i, total).trial, member(i, total)) is None
    verdict = groups.add(member(2, 0).trial, None)
    assert verdict is not None
    assert (len(verdict.stretches), verdict.size, verdict.is_kept) == (2, 3, True)


def test_members_that_started_differently_are_refused() -> None:
    groups = Groups(2)
    groups.add(member(0, 1).trial, member(0, 1))
    other = member(1, 0, start=0.5)
    with pytest.raises(EnvError, match="did not start alike"):
        groups.add(other.trial, other)
