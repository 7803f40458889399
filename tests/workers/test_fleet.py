from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Ref, Trial
from hocket.core.wire import END_OBSERVED, END_TRUNCATED
from hocket.errors import EnvError, UnknownNameError, UsageError
from hocket.workers.fleet import Fleet, FleetConfig
from hocket.workers.inline import InlineRuntime
from hocket.workers.lending import Fleets
from hocket.workers.local.runtime import LocalRuntime
from hocket.workers.notices import (
    LaneFailed,
    LanesBegun,
    LaneSealed,
    LanesExecuted,
    LanesRecycled,
    LanesUp,
)
from support.processes import DEADLINE_S, children
from support.rig import Rig, trials

pytestmark = pytest.mark.heavy


def test_same_trials_give_the_same_rewards_on_any_lanes_runtime_and_transport() -> None:
    planned = trials(6)
    with Rig(lanes=3) as rig:
        expected = rig.play(planned)
    with Rig(lanes=1) as rig:
        assert rig.play(planned[::-1]) == expected
    with Rig(lanes=2, transport="inline") as rig:
        assert rig.play(planned) == expected
    with Rig(runtime=InlineRuntime()) as rig:
        assert rig.play(planned) == expected
    assert len({result.rewards for result in expected.values()}) == len(planned)


def test_global_randomness_is_keyed_by_the_trial_alone() -> None:
    planned, toy = trials(4), {"global_randomness": True}
    with Rig(lanes=2, toy=toy) as rig:
        expected = rig.play(planned)
    with Rig(lanes=1, toy=toy) as rig:
        assert rig.play(planned[::-1]) == expected
    state = np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    with Rig(runtime=InlineRuntime(), toy=toy) as rig:
        assert rig.play(planned[::-1]) == expected
    assert np.random.get_state()[1].tolist() == state  # type: ignore[index, union-attr]


@pytest.mark.parametrize("task", ["plain", "image", "pixels", "talk"])
def test_every_toy_plays_to_its_end(task: str) -> None:
    with Rig(lanes=1) as rig:
        rig.play(trials(2, task))


def test_ready_always_tells_what_the_env_is() -> None:
    with Rig(toy={"length_min": 3, "length_max": 3}) as rig:
        rig.play([*trials(2), *trials(1, "image")])
        told = [notice.spec for notice in rig.heard if isinstance(notice, LanesBegun)]
    first, again, other = told
    assert first is not None
    assert other is not None
    assert again is first
    assert (first.task.name, other.task.name) == ("count", "image")
    assert first.task.prompt == "play count"
    assert first.abilities == ("deferred", "snapshot")
    assert other.cameras == ("observation/image", "observation/wrist_image")
    assert other.observations["observation/image"].shape == (32, 32, 3)
    assert other.action.size == 4
    assert other.action.low.tolist() == [-1.0] * 4


def test_prompt_in_the_observation_wins_over_the_tasks() -> None:
    with Rig() as rig:
        rig.begin(task="talk", seed=5)
        assert rig.wait(LanesBegun).prompts == ["count from 5"]


def test_live_names_what_the_worker_has_built() -> None:
    with Rig() as rig:
        assert rig.fleet.live(0) is None
        rig.begin(task="count")
        rig.wait(LanesBegun)
        assert rig.fleet.live(0) == ("toy", "count")


def test_episode_ends_exactly_where_it_ends_and_the_rest_of_the_chunk_is_not_run() -> None:
    with Rig(toy={"length_min": 5, "length_max": 5}) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((16, 4)))
        done = rig.wait(LanesExecuted)
        assert done.steps == [5]
        assert len(done.rewards[0]) == 5
        assert done.ends[0]


def test_step_limit_truncates_and_final_observation_comes_when_asked_for() -> None:
    with Rig() as rig:
        rig.begin(max_steps=4, final=True)
        rig.wait(LanesBegun)
        before = rig.fleet.arrays(0)["observation/state"].copy()
        rig.execute(np.zeros((16, 4)))
        done = rig.wait(LanesExecuted)
        assert done.steps == [4]
        assert done.ends[0] & END_TRUNCATED
        assert done.ends[0] & END_OBSERVED
        assert rig.fleet.arrays(0)["observation/state"][4] == np.float32(0.004)
        assert before[4] == 0


def test_without_being_asked_no_final_observation_is_taken() -> None:
    with Rig() as rig:
        rig.begin(max_steps=4)
        rig.wait(LanesBegun)
        rig.execute(np.zeros((16, 4)))
        assert not rig.wait(LanesExecuted).ends[0] & END_OBSERVED
        assert rig.fleet.arrays(0)["observation/state"][4] == 0


@pytest.mark.parametrize("task", ["count", "plain"])
@pytest.mark.parametrize("count", [2, 7])
def test_history_holds_the_last_control_steps_oldest_first(task: str, count: int) -> None:
    with Rig(history=4) as rig:
        rig.begin(task=task)
        rig.wait(LanesBegun)
        assert rig.fleet.arrays(0)["observation/state"][:, 4].tolist() == [0.0] * 4
        rig.execute(np.zeros((count, 4)))
        rig.wait(LanesExecuted)
        steps = np.rint(rig.fleet.arrays(0)["observation/state"][:, 4] * 1000).tolist()
        assert steps == [max(0, count - back) for back in (3, 2, 1, 0)]


def test_only_keys_and_cameras_that_are_read_travel() -> None:
    with Rig(reads=("observation/wrist_image",), cameras=("observation/wrist_image",)) as rig:
        rig.begin(task="image")
        rig.wait(LanesBegun)
        assert list(rig.fleet.arrays(0)) == ["observation/wrist_image"]


def test_many_tasks_take_turns_in_one_worker() -> None:
    tasks = ("count", "pixels", "plain", "image")
    planned = [Trial(suite="toy", task=task, seed=seed) for seed, task in enumerate(tasks)]
    with Rig(toy={"length_min": 3, "length_max": 9}) as rig:
        rig.play(planned)
        assert rig.fleet.live(0) == ("toy", "image")
        assert sum(isinstance(notice, LanesUp) for notice in rig.heard) == 1


def test_wake_ends_a_poll_from_another_thread() -> None:
    with Rig() as rig:
        rig.wait(LanesUp)
        timer = threading.Timer(0.05, rig.fleet.wake)
        timer.start()
        # Without the wake it would last longer than a test may.
        assert rig.fleet.poll(1e6) == []
        timer.join()


def begun_pair(rig: Rig) -> None:
    for lane in (0, 1):
        rig.begin(lane=lane, seed=lane)
    for _ in range(2):
        rig.wait(LanesBegun)


def test_a_poll_lingers_until_enough_chunks_have_ended() -> None:
    with Rig(lanes=2, toy={"length_min": 50, "length_max": 50}) as rig:
        begun_pair(rig)
        for lane in (0, 1):
            rig.execute(np.zeros((4, 4)), lane=lane)
        (told,) = rig.fleet.poll(DEADLINE_S, 2, DEADLINE_S)
        assert isinstance(told, LanesExecuted)
        assert sorted(told.lanes) == [0, 1]


def test_a_poll_does_not_linger_for_what_does_not_come() -> None:
    with Rig(lanes=2, toy={"length_min": 50, "length_max": 50}) as rig:
        begun_pair(rig)
        rig.execute(np.zeros((4, 4)), lane=1)
        (told,) = rig.fleet.poll(DEADLINE_S, 2, 0.01)
        assert isinstance(told, LanesExecuted)
        assert told.lanes == [1]


def test_the_end_of_an_episode_is_told_at_once() -> None:
    with Rig(lanes=2, toy={"length_min": 3, "length_max": 3}) as rig:
        begun_pair(rig)
        rig.execute(np.zeros((4, 4)), lane=1)
        # If it lingered for the other lane, it would do so for longer than a test may last.
        told = rig.fleet.poll(DEADLINE_S, 2, 1e6)[0]
        assert isinstance(told, LanesExecuted)
        assert told.lanes == [1]


def test_lanes_may_begin_before_their_worker_is_up() -> None:
    with Rig(lanes=2) as rig:
        rig.begin(lane=1, seed=3)
        assert rig.wait(LanesBegun).lanes == [1]


def test_describe_asks_a_worker_for_the_tasks() -> None:
    spec = WorkerSpec(suites={"all": Ref(name="toy"), "one": Ref(name="toy:image")})
    with Fleet(LocalRuntime(), spec, FleetConfig(lanes=1)) as fleet:
        assert [task.name for task in fleet.describe("one", DEADLINE_S)] == ["image"]
        assert "count" in [task.name for task in fleet.describe("all", DEADLINE_S)]


def test_describe_raises_the_workers_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "poor_envs.py").write_text("def make():\n    raise OSError('no simulator')\n")
    monkeypatch.chdir(tmp_path)
    spec = WorkerSpec(suites={"a": Ref(name="toy:cuont"), "b": Ref(name="poor_envs:make")})
    with Fleet(LocalRuntime(), spec, FleetConfig(lanes=1)) as fleet:
        with pytest.raises(UnknownNameError, match="Did you mean 'count'"):
            fleet.describe("a", DEADLINE_S)
        with pytest.raises(EnvError, match=r"(?s)raised OSError: no simulator\n.*poor_envs\.py"):
            fleet.describe("b", DEADLINE_S)


def test_discarded_attempt_leaves_no_answer_behind() -> None:
    with Rig(toy={"step_s": 0.02, "length_min": 500, "length_max": 500}) as rig:
        rig.begin(seed=1)
        rig.wait(LanesBegun)
        rig.execute(np.zeros((400, 4)))
        rig.fleet.discard([0], [0])
        rig.begin(seed=2)
        rig.wait(LanesBegun)
        rig.execute(np.zeros((2, 4)))
        assert rig.wait(LanesExecuted).steps == [2]
        assert sum(isinstance(notice, LanesExecuted) for notice in rig.heard) == 1


def test_worker_is_recycled_after_so_many_episodes_at_no_loss() -> None:
    toy = {"length_min": 3, "length_max": 9}
    with Rig(toy=toy) as rig:
        expected = rig.play(trials(5))
    with Rig(toy=toy, fleet={"recycle_after": 2}) as rig:
        assert rig.play(trials(5)) == expected
        assert sum(isinstance(notice, LanesRecycled) for notice in rig.heard) == 2
        assert rig.failures() == []


def test_worker_that_grew_is_recycled_between_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise it could be weighed, and killed, in the moment before the episode ends.
    monkeypatch.setattr("hocket.workers.supervisor._WEIGH_S", 1e9)
    toy = {"length_min": 3, "length_max": 3, "leak": 100_000_000}
    with Rig(toy=toy, fleet={"worker_memory": 250_000_000}) as rig:
        rig.play(trials(2))
        assert any(isinstance(notice, LanesRecycled) for notice in rig.heard)
        assert rig.failures() == []


def test_ended_attempt_is_told_before_it_is_sealed() -> None:
    with Rig(toy={"length_min": 3, "length_max": 3}) as rig:
        rig.play(trials(1))
        kinds = [type(notice) for notice in rig.heard]
        assert kinds.index(LanesExecuted) < kinds.index(LaneSealed)


def test_lanes_that_no_worker_can_hold_are_refused() -> None:
    with pytest.raises(UsageError, match="workers of 3"):
        Fleet(LocalRuntime(), WorkerSpec(suites={}, lanes=3), FleetConfig(lanes=4))


def test_plain_env_is_refused_in_a_worker_of_many_lanes() -> None:
    spec = WorkerSpec(suites={"toy": Ref(name="toy")}, lanes=2)
    with Fleet(LocalRuntime(), spec, FleetConfig(lanes=2)) as fleet:
        fleet.begin(
            [0],
            [0],
            [Trial(suite="toy", task="count", seed=0)],
            [None],
            final_observation=False,
            record=[{}],
        )
        failed = fleet.poll(DEADLINE_S)[0]
    assert isinstance(failed, LaneFailed)
    assert failed.kind == "WorkerStart"
    assert "one lane, not 2" in failed.message


def test_closing_twice_is_safe_and_leaves_no_process() -> None:
    before = set(children(os.getpid()))
    rig = Rig(lanes=2, runtime=LocalRuntime())
    with rig:
        rig.begin(seed=1)
        rig.wait(LanesBegun)
        assert len(set(children(os.getpid())) - before) == 3
    assert set(children(os.getpid())) <= before
    rig.fleet.close()


def test_closing_ends_a_worker_that_does_not_listen() -> None:
    before = set(children(os.getpid()))
    with Rig(toy={"hang_at": 1}, runtime=LocalRuntime()) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((4, 4)))
    assert set(children(os.getpid())) <= before


@pytest.mark.slow
def test_fleets_leave_no_file_descriptor_open() -> None:
    def one() -> None:
        toy = {"length_min": 2, "length_max": 2}
        with Rig(toy=toy, runtime=LocalRuntime()) as rig:
            rig.play(trials(1))

    one()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        one()
    assert len(os.listdir("/proc/self/fd")) == before


def test_discarded_reset_leaves_the_next_ones_arrays_whole() -> None:
    with Rig() as rig:
        rig.begin(task="count")
        rig.fleet.discard([0], [0])
        rig.begin(task="pixels")
        rig.wait(LanesBegun)
        assert rig.fleet.arrays(0)["observation/image"].any()


def test_discarded_reset_does_not_swallow_what_the_env_is() -> None:
    with Rig() as rig:
        rig.begin(seed=1)
        rig.fleet.discard([0], [0])
        rig.begin(seed=2)
        ready = rig.wait(LanesBegun)
        assert ready.spec is not None
        assert ready.spec.task.name == "count"


def test_a_fleet_is_kept_for_the_next_run_only_where_its_workers_are_where_that_wants_them() -> (
    None
):
    spec = WorkerSpec(suites={"toy": Ref(name="toy")})
    config = FleetConfig(lanes=1)
    with Fleets() as fleets:
        first = fleets.lend(LocalRuntime, spec, config, where=("local", {}))
        assert fleets.lend(LocalRuntime, spec, config, where=("local", {})) is first
        assert fleets.lend(LocalRuntime, spec, config, where=("docker:x", {})) is not first
