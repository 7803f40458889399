"""Rewards of one's own, evaluations with settings of their own, and curricula."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.core.data import Trial
from hocket.core.outcomes import values_in
from hocket.errors import ConfigError, UnknownNameError
from hocket.train.algorithms.stretches import LayoutError, Stretch, group_of
from hocket.train.collect.curriculum import Curriculum, CurriculumError, Start, weigh_hard
from hocket.train.config import TrainConfig
from hocket.train.rewards import RewardError, Rewards
from hocket.workers.env.chunk_runner import packed_numbers
from hocket.workers.rows.endings import RowNumbers
from train.test_training import ENV, records, run, same_weights, success


def stretch(trial: Trial | None = None, **changes: Any) -> Stretch:
    """Two chunks of three actions, of which three and two were executed."""
    plain: dict[str, Any] = {
        "trial": trial or Trial(suite="toy", task="count", seed=0),
        "attempt": 0,
        "lane": 0,
        "observation": {"observation/state": np.arange(2.0)[:, None]},
        "actions": np.full((2, 3, 1), 0.5, np.float32),
        "executed": np.array([3, 2]),
        "rewards": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]]),
        "log_prob": np.zeros((2, 3), np.float32),
        "value": np.zeros(2, np.float32),
        "version": np.zeros(2, np.int64),
        "chunk": np.arange(2),
        "terminated": True,
        "truncated": False,
        "final": None,
        "success": True,
    }
    return Stretch(**{**plain, **changes})


def effort(episode: Stretch) -> Any:
    return (episode.actions**2).sum(-1)


def haste(episode: Stretch) -> float:
    return 1.0 / episode.steps


def counted(episode: Stretch) -> float:
    """Each step told its number, and nothing is told of steps that were not made."""
    is_made = np.arange(episode.rewards.shape[1]) < episode.executed[:, None]
    told = episode.info["clock/steps"]
    assert told[is_made].tolist() == list(range(1, episode.steps + 1))
    assert np.isnan(told[~is_made]).all()
    return float(episode.steps)


def broken(episode: Stretch) -> Any:
    raise KeyError("speed")


def ragged(episode: Stretch) -> Any:
    return np.zeros(episode.steps)


def endless(episode: Stretch) -> float:
    return float("nan")


constant = 3.0
HERE = "train.test_rewards"


def test_terms_are_weighted_and_summed_and_told_apart() -> None:
    rewards = Rewards(f"success, 0.1*env, -2*{HERE}:effort, {HERE}:haste")
    found = rewards.give(stretch())
    wanted = 0.1 * np.array([[1, 2, 3], [4, 5, 0.0]]) - 0.5 * np.array([[1, 1, 1], [1, 1, 0.0]])
    wanted[1, 1] += 1.0 + 0.2
    np.testing.assert_allclose(found.stretch.rewards, wanted)
    assert found.terms == {
        "success": 1.0,
        "env": pytest.approx(1.5),
        f"{HERE}:effort": pytest.approx(-2.5),
        f"{HERE}:haste": pytest.approx(0.2),
    }
    assert rewards.needs_whole_episodes
    assert not Rewards("success,env").needs_whole_episodes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sucess", "Did you mean 'success'"),
        ("much*env", "'much' is no weight"),
        ("env,2*env", "named twice"),
        ("", "There is no reward ''"),
    ],
)
def test_a_reward_that_cannot_be_read_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TrainConfig(env=(ENV,), policy="actor", reward=text)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere_at_all:reward", "no module 'nowhere_at_all'"),
        (f"{HERE}:efort", "Did you mean 'effort'"),
        (f"{HERE}:constant", "is a float, no function"),
    ],
)
def test_a_reward_function_that_is_not_there_is_refused_before_anything_runs(
    tmp_path: Path, name: str, said: str
) -> None:
    with pytest.raises(UnknownNameError, match=said):
        run(tmp_path, reward=name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "raised KeyError: 'speed' .in episode toy/count/0"),
        ("ragged", r"returned an array \(5,\) .* like `Stretch.rewards`"),
        ("endless", "rewards must be finite"),
    ],
)
def test_a_reward_function_that_fails_is_named(name: str, said: str) -> None:
    with pytest.raises(RewardError, match=said):
        Rewards(f"{HERE}:{name}").give(stretch())


def test_a_function_is_what_is_trained_for_and_its_terms_are_logged(tmp_path: Path) -> None:
    result = run(tmp_path, reward=f"success,0.5*{HERE}:haste", steps=300)
    for record in records(result, "update"):
        parts = record["reward/success"] + record[f"reward/{HERE}:haste"]
        assert record["train/return"] == pytest.approx(parts)
        assert record["reward/success"] == record["train/success"]
    with pytest.raises(ConfigError, match="leave out --segment-chunks"):
        run(tmp_path, "cut", reward=f"{HERE}:haste", segment_chunks=2)


@pytest.mark.parametrize(
    "settings",
    [
        {"lanes": 1},
        {"lanes": 2},
        {"env": ("support.row_toys:RowToys",), "lanes": 3, "runtime": "inline"},
        {"env": ("support.row_toys:RowToys",), "lanes": 3, "runtime": "local"},
    ],
    ids=["inline", "processes", "rows", "rows in a process"],
)
def test_a_reward_function_sees_what_the_env_told_at_each_step(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    result = run(tmp_path, reward=f"{HERE}:counted", steps=60, batch=4, epochs=1, **settings)
    for record in records(result, "update"):
        length = record["train/episode_steps"]
        assert record["train/return"] == length
        assert 0 < record["info/clock/steps"] <= length
        assert "info/success" not in record
        assert ("info/distance" in record) == ("env" not in settings)


def test_numbers_of_info_are_told_by_step_and_by_mean_and_not_to_the_learner() -> None:
    told = np.array([[1.0, np.nan, 3.0], [np.nan, 5.0, np.nan]])
    nothing = np.full((2, 3), np.nan)
    given = Rewards(f"{HERE}:effort").give(stretch(info={"speed": told, "never": nothing}))
    assert given.info == {"speed": 3.0}
    assert given.stretch.info == {}
    with pytest.raises(LayoutError, match="in info is not"):
        stretch(info={"speed": told[:1]})


def test_numbers_in_info_are_found_whatever_they_are() -> None:
    info = {
        "success": True,
        "cost": np.float32(0.5),
        "count": np.array([3]),
        "parts": {"near": 1, "text": "no"},
        "vector": np.zeros(2),
        "name": "a",
        "nothing": None,
        "complex": np.complex64(1j),
    }
    wanted = {"success": 1.0, "cost": 0.5, "count": 3.0, "parts/near": 1.0}
    assert values_in(info) == wanted
    packed = packed_numbers([{"a": 1.0}, {"b": 2.0}])
    assert np.frombuffer(packed["a"])[0] == 1.0
    assert np.isnan(np.frombuffer(packed["a"])[1])


@pytest.mark.parametrize("early", [{}, {"other": np.zeros(2)}])
def test_key_that_is_told_late_is_no_number_of_rows_that_were_done_before(early: Any) -> None:
    numbers = RowNumbers(2)
    for done in (1, 2, 3):
        numbers.add(np.array([0]), np.array([done]), early)
    numbers.add(np.array([1]), np.array([1]), {"late": np.array([7.0, 8.0])})
    both = numbers.packed(np.array([0, 1]), np.array([3, 1]))
    told = np.frombuffer(both["late"])
    assert np.isnan(told[:3]).all()
    assert told[3] == 8.0
    assert all(len(packed) == 8 * 4 for packed in both.values())


def test_evaluations_have_settings_of_their_own(tmp_path: Path) -> None:
    seen = {kind: tmp_path / kind for kind in ("trained", "evaluated")}
    run(
        tmp_path,
        steps=200,
        eval_every=200,
        eval_episodes=2,
        env_config={"witness": str(seen["trained"])},
        eval_env_config={"witness": str(seen["evaluated"])},
    )
    seeds = {
        kind: {int(line.split()[1]) for line in path.read_text().splitlines() if "reset" in line}
        for kind, path in seen.items()
    }
    assert seeds["evaluated"] == {0, 1}
    # The first look at the env has a seed of evaluation's.
    assert {seed for seed in seeds["trained"] if seed < 10_000_000} == {0}
    assert len(seeds["trained"]) > 16
    with pytest.raises(ConfigError, match="has no setting 'wind'"):
        run(tmp_path, "other", eval_env_config={"wind": 1})


# -- curricula -------------------------------------------------------------------------------------

TASKS = [("toy", "count"), ("toy", "plain")]


def test_starts_come_as_often_as_they_weigh() -> None:
    def only_the_last(starts: Any) -> list[float]:
        return [float(start is starts[-1]) for start in starts]

    trials = [Curriculum(TASKS, 0, starts=3, weigh=only_the_last).next_group() for _ in range(2)]
    assert {(t.task, t.seed) for group in trials for t in group} == {("plain", 10_000_002)}
    fair = Curriculum(TASKS, 0, 2, starts=3)
    groups = [fair.next_group() for _ in range(60)]
    assert len({(t.task, t.seed) for group in groups for t in group}) == 6
    assert len({t.id for group in groups for t in group}) == 120
    assert len({group_of(t, 2) for group in groups for t in group}) == 60


def test_starts_whose_end_is_open_weigh_most_and_none_weighs_nothing() -> None:
    outcomes = [(0, 0), (8, 4), (8, 0), (8, 8), (998, 0)]
    starts = [
        Start(suite="toy", task="count", seed=i, tried=tried, succeeded=succeeded)
        for i, (tried, succeeded) in enumerate(outcomes)
    ]
    assert weigh_hard(starts) == pytest.approx([0.25, 0.25, 0.09, 0.09, 0.02])


def test_weights_change_when_an_update_is_done_and_survive_a_checkpoint() -> None:
    plan = Curriculum(TASKS[:1], 0, starts=2, weigh=weigh_hard)
    trial = Trial(suite="toy", task="count", seed=10_000_000, repeat=0)
    for ended in (True, True, False, None):
        plan.add(trial, None if ended is None else stretch(trial, success=ended))
    assert plan.to_curves()["starts/tried"] == 0.0
    plan.settle()
    assert plan.to_state() == [[3, 2, 45.0], [0, 0, 0.0]]
    again = Curriculum(TASKS[:1], 0, starts=2, weigh=weigh_hard)
    again.restore(plan.planned, plan.to_state())
    assert [plan.next_group() for _ in range(9)] == [again.next_group() for _ in range(9)]


@pytest.mark.parametrize("weights", [[1.0], [0.0, 0.0], [1.0, -1.0], [1.0, float("nan")]])
def test_what_are_no_weights_is_refused(weights: list[float]) -> None:
    with pytest.raises(CurriculumError, match="must return 2 weights"):
        Curriculum(TASKS[:1], 0, starts=2, weigh=lambda _: weights)


@pytest.mark.slow
def test_a_run_with_a_curriculum_is_the_same_to_the_bit_also_when_it_was_resumed(
    tmp_path: Path,
) -> None:
    chosen = {"curriculum": "hard", "starts": 8, "steps": 400}
    whole = run(tmp_path, "whole", **chosen)
    other = run(tmp_path, "other", lanes=2, **chosen)
    run(tmp_path, "part", minutes=0.0, **chosen)
    rest = run(tmp_path, "part", resume=True, **chosen)
    assert same_weights(whole.run, other.run)
    assert same_weights(whole.run, rest.run)
    last = records(whole, "update")[-1]
    assert last["starts/tried"] > 4.0
    assert last["starts/effective"] < 8.0


@pytest.mark.slow
def test_a_curriculum_in_rows_is_the_same_whatever_other_rows_do(tmp_path: Path) -> None:
    """Episodes differ in length: a row that waits for its next trial is held while others step."""
    chosen = {
        "env": ("support.row_toys:RowToys",),
        "curriculum": "hard",
        "starts": 4,
        "steps": 300,
        "eval_every": 0,
    }
    one = run(tmp_path, "one", lanes=1, **chosen)
    many = run(tmp_path, "many", lanes=5, **chosen)
    apart = run(tmp_path, "apart", lanes=4, env_config={"apart": True}, **chosen)
    assert same_weights(one.run, many.run)
    assert same_weights(one.run, apart.run)
    assert records(many, "update")[-1]["starts/tried"] > 4.0


@pytest.mark.slow
def test_groups_of_a_start_that_comes_again_are_apart(tmp_path: Path) -> None:
    result = run(tmp_path, algo="grpo", group=4, starts=2, steps=400, eval_every=0)
    assert result.complete
    assert success(result) == []
