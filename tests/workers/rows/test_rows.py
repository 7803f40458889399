"""Rows of a batched simulator as lanes: through the real engine, inline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import hocket
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Array, Outcome, Ref, Trial
from hocket.core.wire import END_DIVERGED, outcome_of
from hocket.errors import EnvError, SuspensionError, UsageError
from hocket.workers.fleet import Fleet, FleetConfig
from hocket.workers.inline import InlineRuntime
from hocket.workers.notices import LanesBegun, LanesExecuted, LanesUp, Notice
from support.row_toys import KEY, Echo, RowToy, RowToyConfig, RowToys

ENV = "support.row_toys:RowToys"


def evaluate(
    *, lanes: int, episodes: int = 6, policy: Any = None, out: Path | None = None, **toy: Any
) -> hocket.Report:
    return hocket.evaluate(
        env=ENV,
        policy=policy or Echo(),
        lanes=lanes,
        episodes=episodes,
        env_config=toy,
        out=out,
        retries=0,
    )


def results(report: hocket.Report) -> dict[str, Any]:
    return {e.trial.id: (e.outcome, e.steps, e.total_reward) for e in report.episodes}


def test_results_do_not_depend_on_the_number_of_rows() -> None:
    alone = results(evaluate(lanes=1))
    assert len(alone) == 12
    assert len({outcome for outcome, _, _ in alone.values()}) == 2
    for lanes in (2, 5, 16):
        assert results(evaluate(lanes=lanes)) == alone


@pytest.mark.parametrize("way", ["mask", "snapshot"])
def test_results_do_not_depend_on_how_rows_are_suspended(way: str) -> None:
    assert results(evaluate(lanes=5, way=way)) == results(evaluate(lanes=1))


def test_tasks_with_simulators_of_their_own_run_side_by_side() -> None:
    assert results(evaluate(lanes=4, apart=True)) == results(evaluate(lanes=4))


def test_a_simulator_that_can_neither_mask_nor_restore_is_refused() -> None:
    with pytest.raises((EnvError, SuspensionError), match="cannot be suspended"):
        evaluate(lanes=4, way="none")


def test_a_history_is_the_same_whatever_the_number_of_rows() -> None:
    alone = results(evaluate(lanes=1, policy=Echo(history=3)))
    assert results(evaluate(lanes=7, policy=Echo(history=3))) == alone
    assert alone != results(evaluate(lanes=1))


def test_a_history_is_the_same_where_tasks_have_simulators_of_their_own() -> None:
    together = results(evaluate(lanes=4, policy=Echo(history=3)))
    assert results(evaluate(lanes=4, policy=Echo(history=3), apart=True)) == together


def test_hocket_ends_episodes_at_the_limit() -> None:
    report = evaluate(lanes=4, max_steps=7, length_min=5, length_max=9)
    assert {e.steps for e in report.episodes} <= {5, 6, 7}
    cut = [e for e in report.episodes if e.truncated]
    assert cut
    assert all(e.steps == 7 and not e.terminated for e in cut)


def test_rows_without_a_judge_finish() -> None:
    report = evaluate(lanes=3, judged=False)
    assert {e.outcome for e in report.episodes} == {Outcome.FINISHED}


def test_the_record_says_how_rows_were_suspended(tmp_path: Path) -> None:
    for way in ("mask", "snapshot"):
        evaluate(lanes=3, episodes=2, way=way, out=tmp_path / way)
        about = yaml.safe_load((tmp_path / way / "run.yaml").read_text())["about"]
        assert about["suspension"] == {ENV: way}


def test_recordings_hold_exactly_the_executed_steps(tmp_path: Path) -> None:
    from hocket.records.step_rows import load_steps

    policy = Echo(length=5)
    report = evaluate(lanes=6, episodes=8, policy=policy, out=tmp_path / "run", way="snapshot")
    table = load_steps(tmp_path / "run").to_pydict()
    for episode in report.episodes:
        mine = [i for i, trial in enumerate(table["trial"]) if trial == episode.trial.id]
        steps = [table["step"][i] for i in mine]
        assert steps == list(range(episode.steps + 1))
        assert [table["chunk"][i] for i in mine] == [-1] + [s // 5 for s in range(episode.steps)]
        assert sum(table["reward"][i] for i in mine) == pytest.approx(episode.total_reward)
        assert replayed(episode.trial, [table["action"][i] for i in mine[1:]]) == pytest.approx(
            [table["reward"][i] for i in mine[1:]], abs=0
        )


def replayed(trial: Trial, actions: list[list[float]]) -> list[float]:
    """Rewards of the trial in a toy of its own."""
    toy = RowToy(1, ("walk", "run"), RowToyConfig())
    toy.reset(np.array([0]), [trial.task], [trial.seed])
    return [
        float(toy.step(np.array([action], np.float32), np.ones(1, np.bool_)).rewards[0])
        for action in actions
    ]


def test_a_simulator_that_raises_costs_its_live_rows_and_is_built_again() -> None:
    RowToys.made.clear()
    report = hocket.evaluate(
        env=ENV, policy=Echo(), lanes=4, episodes=4, env_config={"raise_at": 9}, retries=20
    )
    assert len(RowToys.made) > 1
    assert RowToys.made[0].is_closed
    assert results(report) == results(evaluate(lanes=1, episodes=4))
    assert max(e.attempt for e in report.episodes) > 0


def test_batched_and_plain_envs_do_not_share_a_run() -> None:
    with pytest.raises(UsageError, match="one run cannot have both"):
        hocket.evaluate(env=[ENV, "toy:count"], policy=Echo(), lanes=2, episodes=1)


def test_another_interpreter_is_refused() -> None:
    with pytest.raises(UsageError, match="env-python"):
        hocket.evaluate(env=ENV, policy=Echo(), lanes=2, episodes=1, env_python="/usr/bin/python3")


# -- Through a fleet, step by step ---------------------------------------------------------------


class Rows:
    """A fleet of one inline worker, driven by hand."""

    def __init__(self, lanes: int, **toy: Any) -> None:
        spec = WorkerSpec(suites={"toys": Ref(name=ENV, config=toy)}, lanes=lanes)
        self.fleet = Fleet(InlineRuntime(), spec, FleetConfig(lanes=lanes))
        self.fleet.start()
        self.attempts = 0
        self.heard: list[Notice] = []
        assert isinstance(self.hear()[0], LanesUp)

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self.fleet.close()

    @property
    def toy(self) -> RowToy:
        return RowToys.made[-1]

    def hear(self) -> list[Notice]:
        found = self.fleet.poll(0.0)
        self.heard += found
        return found

    def begin(self, lanes: list[int], seeds: list[int], *, final: bool = False) -> None:
        trials = [Trial(suite="toys", task="walk", seed=seed) for seed in seeds]
        count = len(lanes)
        self.fleet.begin(
            lanes, [0] * count, trials, [None] * count, final_observation=final, record=[{}] * count
        )
        ready = [notice for notice in self.hear() if isinstance(notice, LanesBegun)]
        assert [lane for notice in ready for lane in notice.lanes] == lanes

    def execute(self, lanes: list[int], actions: list[Array], chunk: int = 0) -> None:
        self.fleet.execute(lanes, [0] * len(lanes), [chunk] * len(lanes), actions)

    def until_executed(self, *, polls: int = 50) -> LanesExecuted:
        for _ in range(polls):
            for notice in self.hear():
                if isinstance(notice, LanesExecuted):
                    return notice
        raise AssertionError(f"No chunk ended: {self.heard}")


def wave(count: int, shift: float) -> Array:
    return np.sin(np.arange(count * 3) + shift).reshape(count, 3)


def test_a_suspended_row_is_the_same_after_a_thousand_steps_of_others() -> None:
    with Rows(3, length_min=5000, length_max=5000) as rows:
        rows.begin([0, 1, 2], [7, 8, 9])
        rows.execute([1], [wave(3, 0.5)])
        rows.until_executed()
        before = rows.toy.get_rows(np.array([0, 1])).copy()
        rows.execute([2], [wave(1000, 0.1)])
        executed = rows.until_executed(polls=1100)
        assert executed.steps == [1000]
        assert (rows.toy.get_rows(np.array([0, 1])) == before).all()
        assert rows.toy.clock.tolist() == [0, 3, 1000]


def test_partial_resets_touch_only_their_rows() -> None:
    with Rows(4, length_min=100, length_max=100) as rows:
        rows.begin([0, 1, 2, 3], [1, 2, 3, 4])
        rows.execute([0, 1, 2, 3], [wave(5, lane) for lane in range(4)])
        rows.until_executed()
        before = rows.toy.get_rows(np.arange(4)).copy()
        rows.begin([2], [99])
        after = rows.toy.get_rows(np.arange(4))
        assert (after[[0, 1, 3]] == before[[0, 1, 3]]).all()
        assert after[2, 2] == 0


def test_a_recalled_chunk_ends_after_the_running_step() -> None:
    with Rows(2, length_min=100, length_max=100) as rows:
        rows.begin([0, 1], [1, 2])
        rows.execute([0, 1], [wave(50, 0), wave(4, 1)])
        assert rows.until_executed().lanes == [1]
        rows.fleet.recall(0, 0, 0)
        executed = rows.until_executed()
        assert (executed.lanes, executed.steps, executed.ends) == ([0], [4], [0])
        assert rows.toy.clock.tolist() == [4, 4]


def test_an_action_that_is_no_number_costs_its_own_row() -> None:
    with Rows(3, length_min=100, length_max=100) as rows:
        rows.begin([0, 1, 2], [1, 2, 3])
        bad = wave(4, 1)
        bad[2, 0] = np.nan
        rows.execute([0, 1, 2], [wave(4, 0), bad, wave(4, 2)])
        executed = rows.until_executed()
        assert (executed.lanes, executed.steps) == ([1], [0])
        assert executed.ends[0] & END_DIVERGED
        assert outcome_of(executed.ends[0]) is Outcome.FAILURE
        executed = rows.until_executed()
        assert (executed.lanes, executed.steps, executed.ends) == ([0, 2], [4, 4], [0, 0])
        rows.begin([1], [5])
        rows.execute([1], [wave(2, 0)])
        assert rows.until_executed().lanes == [1]


def test_a_discarded_attempt_is_forgotten_and_its_lane_begins_anew() -> None:
    with Rows(2, length_min=100, length_max=100) as rows:
        rows.begin([0, 1], [1, 2])
        rows.execute([0, 1], [wave(9, 0), wave(3, 1)])
        rows.hear()
        rows.fleet.discard([0], [0])
        rows.begin([0], [4])
        assert rows.until_executed().lanes == [1]
        rows.execute([0], [wave(2, 0)])
        executed = rows.until_executed()
        assert (executed.lanes, executed.steps) == ([0], [2])


def test_the_last_observation_outlives_the_next_reset_until_it_is_read() -> None:
    with Rows(2, length_min=4, length_max=4) as rows:
        rows.begin([0, 1], [1, 2], final=True)
        rows.execute([0, 1], [wave(6, 0), wave(6, 1)])
        executed = rows.until_executed()
        assert executed.steps == [4, 4]
        last = rows.fleet.arrays(1)[KEY].copy()
        assert last[-1] == np.float32(0.04)
        rows.begin([1], [5])
        assert rows.fleet.arrays(1)[KEY][-1] == 0


@given(data=st.data(), way=st.sampled_from(["mask", "snapshot"]))
def test_a_row_does_not_depend_on_what_other_rows_do(data: st.DataObject, way: str) -> None:
    """Random chunk lengths and orders of answers: the rewards of a row are those of its actions."""
    lanes = data.draw(st.integers(2, 5))
    with Rows(lanes, length_min=30, length_max=60, way=way) as rows:
        rows.begin(list(range(lanes)), list(range(10, 10 + lanes)))
        executed: list[list[float]] = [[] for _ in range(lanes)]
        played: list[list[Array]] = [[] for _ in range(lanes)]
        waiting, chunks = set(range(lanes)), [0] * lanes
        for turn in range(data.draw(st.integers(5, 25))):
            ready = sorted(waiting)
            chosen = data.draw(st.lists(st.sampled_from(ready), unique=True)) if ready else []
            for lane in chosen:
                actions = wave(data.draw(st.integers(1, 6)), turn + lane)
                played[lane].append(actions)
                rows.execute([lane], [actions], chunks[lane])
                chunks[lane] += 1
                waiting.discard(lane)
            for notice in rows.hear():
                if isinstance(notice, LanesExecuted):
                    for index, lane in enumerate(notice.lanes):
                        executed[lane] += notice.rewards[index].tolist()
                        if not notice.ends[index]:
                            waiting.add(lane)
        for lane in range(lanes):
            trial = Trial(suite="toys", task="walk", seed=10 + lane)
            actions = np.concatenate([*played[lane], np.zeros((0, 3))]).astype(np.float32)
            expected = replayed(trial, actions.tolist())
            assert executed[lane] == expected[: len(executed[lane])]
