from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hocket.contracts import AttemptStart, StepRecord, WorkerSpec
from hocket.data import Outcome, Ref, TaskInfo, Trial
from hocket.fleet.fleet import Fleet, FleetConfig
from hocket.fleet.notices import LaneSealed, LanesExecuted, LanesReady
from hocket.record.numbers import NumbersSink
from hocket.runtimes.local import LocalRuntime

TRIAL = Trial(suite="toy", task="count", seed=0)


def start(folder: Path) -> AttemptStart:
    return AttemptStart(
        trial=TRIAL,
        attempt=0,
        task=TaskInfo(name="count"),
        prompt="",
        folder=str(folder),
        record={},
    )


def step(number: int) -> StepRecord:
    return StepRecord(
        step=number,
        action=None if number == 0 else np.full(3, number, np.float32),
        reward=number / 2,
        terminated=number == 4,
        truncated=False,
        success=None,
        chunk=(number - 1) // 2,
        age=(number - 1) % 2,
        observation=None,
        state=None,
    )


def test_file_holds_the_numbers_of_every_step(tmp_path: Path) -> None:
    track = NumbersSink().open(start(tmp_path / "a"))
    for number in range(5):
        track.step(step(number))
    (path,) = track.seal(Outcome.SUCCESS)
    with np.load(path) as file:
        assert file["action"].tolist() == [[n, n, n] for n in (1, 2, 3, 4)]
        assert file["action"].dtype == np.float32
        assert file["reward"].tolist() == [0.5, 1.0, 1.5, 2.0]
        assert file["terminated"].tolist() == [False, False, False, True]
        assert file["truncated"].tolist() == [False] * 4
        assert file["chunk"].tolist() == [0, 0, 1, 1]
        assert file["age"].tolist() == [0, 1, 0, 1]
        assert str(file["outcome"]) == "success"
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["numbers.npz"]


def test_nothing_is_on_disk_before_the_attempt_ends_or_after_it_is_discarded(
    tmp_path: Path,
) -> None:
    track = NumbersSink().open(start(tmp_path / "a"))
    track.step(step(1))
    track.discard()
    assert not (tmp_path / "a").exists()


def test_file_that_cannot_be_written_whole_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("in the way")
    track = NumbersSink().open(start(tmp_path / "a"))
    track.step(step(1))
    with pytest.raises(OSError, match="a"):
        track.seal(Outcome.FAILURE)


def test_worker_writes_what_it_executed(tmp_path: Path) -> None:
    spec = WorkerSpec(
        suites={"toy": Ref(name="toy", config={"length_min": 5, "length_max": 5})},
        sinks=(Ref(name="numbers"),),
        folder=str(tmp_path),
    )
    actions = np.linspace(-1, 1, 32).reshape(8, 4)
    rewards: list[float] = []
    with Fleet(LocalRuntime(), spec, FleetConfig(lanes=1)) as fleet:
        fleet.start()
        fleet.begin([0], [1], [TRIAL], [None], final_observation=False, record=[{}])
        sealed: LaneSealed | None = None
        for _ in range(200):
            for notice in fleet.poll(1.0):
                if isinstance(notice, LanesReady):
                    fleet.execute([0], [1], [0], [actions[:3]])
                elif isinstance(notice, LanesExecuted):
                    rewards += notice.rewards[0].tolist()
                    if not notice.ends[0]:
                        fleet.execute([0], [1], [1], [actions[3:]])
                elif isinstance(notice, LaneSealed):
                    sealed = notice
            if sealed is not None:
                break
    assert sealed is not None
    assert sealed.files == ["episodes/toy-count-0/1/numbers.npz"]
    with np.load(tmp_path / sealed.files[0]) as file:
        assert file["reward"].tolist() == rewards
        assert file["chunk"].tolist() == [0, 0, 0, 1, 1]
        assert np.array_equal(file["action"], actions[:5].astype(np.float32))
