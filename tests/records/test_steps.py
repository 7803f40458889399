"""One row for each step: a small file from the worker, a segment beside the ledger."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hocket.core.contracts.recorder import AttemptStart, Sink, StepRecord
from hocket.core.data import Array, Episode, Outcome, Trial
from hocket.core.events import AttemptsBegan, EpisodesSealed
from hocket.core.specs import TaskInfo
from hocket.errors import ObservationError, RunFolderError
from hocket.records.ledger.ledger import Ledger
from hocket.records.step_rows import SCHEMA, StepRows, load_steps
from hocket.workers.sinks.states import save_states
from hocket.workers.sinks.steps import (
    FILE,
    LARGEST,
    StepsConfig,
    StepsSink,
    StepsTrack,
    read_layout,
    split_states,
)

TRIAL = Trial(suite="toy", task="reach", seed=4)


def track(root: Path, attempt: int = 0) -> StepsTrack:
    sink: Sink = StepsSink()
    folder = root / "episodes" / TRIAL.slug / str(attempt)
    found = sink.open(
        AttemptStart(
            trial=TRIAL,
            attempt=attempt,
            task=TaskInfo(name="reach"),
            prompt="reach",
            folder=str(folder),
            record={},
        )
    )
    assert isinstance(found, StepsTrack)
    return found


def record(
    step: int,
    *,
    size: int = 2,
    seen: bool = False,
    success: bool | None = None,
    ended: bool = False,
) -> StepRecord:
    return StepRecord(
        step=step,
        action=np.arange(size, dtype=np.float32) + step if step else None,
        reward=step / 3,
        terminated=ended,
        truncated=False,
        success=success,
        chunk=(step - 1) // 2,
        age=step % 2,
        observation={"observation/state": np.array([step, -step], np.float32)} if seen else None,
        state=None,
    )


def rows_of(root: Path, files: list[str]) -> list[dict[str, object]]:
    """The rows that a run's recorder makes of an episode's files."""
    names = tuple(str(Path(file).relative_to(root)) for file in files)
    episode = Episode(
        trial=TRIAL, attempt=0, outcome=Outcome.SUCCESS, steps=3, total_reward=1.0, files=names
    )
    recorder = StepRows(root)
    recorder.write(root / "part.parquet", [recorder.take(episode)])
    table = pq.read_table(root / "part.parquet")
    assert table.schema.equals(SCHEMA)
    found: list[dict[str, object]] = table.to_pylist()
    return found


def test_row_tells_a_step_and_its_chunk(tmp_path: Path) -> None:
    steps = track(tmp_path)
    steps.step(record(0, seen=True))
    steps.step(record(1, success=False))
    steps.step(record(2, seen=True, success=True, ended=True))
    first, second, third = rows_of(tmp_path, list(steps.seal(Outcome.SUCCESS)))
    assert first == {
        "trial": "toy/reach/4",
        "attempt": 0,
        "step": 0,
        "chunk": -1,
        "age": 0,
        "reward": 0.0,
        "terminated": False,
        "truncated": False,
        "success": None,
        "action": None,
        "state": [0.0, 0.0],
        "prompt": "reach",
        "layout": '{"observation/state": {"shape": [2], "dtype": "<f4"}}',
    }
    assert second["action"] == [1.0, 2.0]
    assert second["state"] is None
    assert second["reward"] == 1 / 3
    assert (second["success"], second["terminated"]) == (False, False)
    assert third["state"] == [2.0, -2.0]
    assert (third["success"], third["terminated"], third["chunk"]) == (True, True, 0)


def test_reset_alone_is_a_row(tmp_path: Path) -> None:
    steps = track(tmp_path)
    steps.step(record(0))
    (row,) = rows_of(tmp_path, list(steps.seal(Outcome.FINISHED)))
    assert row["action"] is None
    assert row["state"] is None


def test_attempt_without_any_step_seals_an_empty_file(tmp_path: Path) -> None:
    assert [Path(file).name for file in track(tmp_path).seal(Outcome.FINISHED)][:1] == [FILE]


def test_recorded_values_are_copies_of_what_the_env_reuses(tmp_path: Path) -> None:
    steps = track(tmp_path)
    action, state = np.zeros(2), np.zeros(3)
    steps.step(record(0))
    for step in (1, 2):
        action[:] = step
        state[:] = step
        steps.step(
            StepRecord(
                step=step,
                action=action,
                reward=0.0,
                terminated=False,
                truncated=False,
                success=None,
                chunk=0,
                age=step,
                observation={"observation/state": state},
                state=None,
            )
        )
    rows = rows_of(tmp_path, list(steps.seal(Outcome.SUCCESS)))
    assert [row["action"] for row in rows] == [None, [1.0, 1.0], [2.0, 2.0]]
    assert [row["state"] for row in rows] == [None, [1.0] * 3, [2.0] * 3]


def seen(step: int, **arrays: Array) -> StepRecord:
    observation = {f"observation/{key}": array for key, array in arrays.items()}
    return record(step)._replace(observation=observation)


def test_every_array_but_pictures_is_kept_and_found_again(tmp_path: Path) -> None:
    steps = track(tmp_path)
    picture = np.zeros((8, 8, 3), np.uint8)
    for step in range(2):
        goal, count = np.full((2, 2), step / 4), np.array(step, np.int32)
        steps.step(seen(step, goal=goal, count=count, image=picture))
    rows = rows_of(tmp_path, list(steps.seal(Outcome.SUCCESS)))
    layout = read_layout(str(rows[1]["layout"]))
    assert list(layout) == ["observation/count", "observation/goal"]
    found = split_states(np.array([rows[1]["state"]]), layout)
    assert found["observation/count"].tolist() == [1]
    assert found["observation/count"].dtype == np.int32
    assert found["observation/goal"].tolist() == [[[0.25, 0.25], [0.25, 0.25]]]


def test_large_array_is_named_and_not_kept_unless_all_is(tmp_path: Path) -> None:
    large = np.zeros((LARGEST + 1,), np.float32)
    for largest, is_kept in ((LARGEST, False), (None, True)):
        steps = StepsTrack(StepsConfig(largest=largest), tmp_path, "reach")
        steps.step(seen(0, depth=large, goal=np.ones(2)))
        (row,) = rows_of(tmp_path, list(steps.seal(Outcome.SUCCESS)))
        layout = read_layout(str(row["layout"]))
        assert layout["observation/depth"].is_kept == is_kept
        found = split_states(np.array([row["state"]]), layout)
        assert found["observation/goal"].tolist() == [[1.0, 1.0]]
        assert ("observation/depth" in found) == is_kept


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"goal": np.zeros(3)}, r"is \(3,\) at step 1, and was \(2,\)"),
        ({}, "is missing at step 1"),
        ({"goal": np.zeros(2), "more": np.zeros(1)}, "has 'observation/more'"),
    ],
)
def test_array_that_comes_goes_or_changes_is_an_error(
    tmp_path: Path, second: dict[str, Array], words: str
) -> None:
    steps = track(tmp_path)
    steps.step(seen(0, goal=np.zeros(2)))
    with pytest.raises(ObservationError, match=words):
        steps.step(seen(1, **second))


def test_whole_numbers_that_would_lose_digits_are_refused(tmp_path: Path) -> None:
    steps = track(tmp_path)
    steps.step(seen(0, key=np.array([2**53])))
    with pytest.raises(ObservationError, match="above 2"):
        steps.step(seen(1, key=np.array([2**53 + 1])))


def test_sink_looks_at_every_step_where_that_is_free_or_asked_for() -> None:
    def looks(*abilities: str, every_step: bool = False) -> bool:
        sink = StepsSink(config=StepsConfig(every_step=every_step))
        return sink.needs_of(TaskInfo(name="reach"), {}, abilities).observations

    assert looks()
    assert not looks("deferred")
    assert looks("deferred", every_step=True)
    assert not looks("deferred", "snapshot", every_step=True)
    assert not looks("deferred", "snapshot", "batched")
    assert looks("deferred", "snapshot", "batched", every_step=True)


def test_sink_asks_only_for_what_it_keeps() -> None:
    assert not StepsSink().needs.states
    assert not StepsSink().needs.observations
    assert not StepsSink().needs.cameras


def test_action_that_changes_its_size_is_an_error(tmp_path: Path) -> None:
    steps = track(tmp_path)
    steps.step(record(1))
    steps.step(record(2, size=3))
    with pytest.raises(ObservationError, match="'action' changed its size"):
        steps.seal(Outcome.SUCCESS)


def test_nothing_is_on_disk_before_an_attempt_is_sealed(tmp_path: Path) -> None:
    steps = track(tmp_path)
    steps.step(record(0))
    steps.discard()
    assert list(tmp_path.iterdir()) == []


def test_tasks_with_actions_of_different_sizes_share_a_segment(tmp_path: Path) -> None:
    recorder = StepRows(tmp_path)
    taken = []
    for attempt, size in enumerate((2, 5)):
        steps = track(tmp_path, attempt=attempt)
        steps.step(record(0))
        steps.step(record(1, size=size))
        (file,) = steps.seal(Outcome.SUCCESS)
        episode = Episode(
            trial=TRIAL,
            attempt=attempt,
            outcome=Outcome.SUCCESS,
            steps=1,
            total_reward=0.0,
            files=(str(Path(file).relative_to(tmp_path)),),
        )
        taken.append(recorder.take(episode))
    assert recorder.write(tmp_path / "part.parquet", taken) == 4
    actions = pq.read_table(tmp_path / "part.parquet")["action"].to_pylist()
    assert [len(action) if action else None for action in actions] == [None, 2, None, 5]


def test_committed_episode_gives_up_its_file_and_keeps_its_states(tmp_path: Path) -> None:
    with Ledger.create(tmp_path, [TRIAL], {}) as ledger:
        ledger.attach(StepRows(tmp_path))
        ledger.on(AttemptsBegan(time=0.0, lanes=[0], trials=[TRIAL], attempts=[0]))
        steps = track(tmp_path)
        for step in range(3):
            steps.step(record(step))
        (file,) = (Path(f).relative_to(tmp_path) for f in steps.seal(Outcome.SUCCESS))
        save_states(tmp_path / file.with_name("states.npz"), np.zeros((3, 2)))
        files = (str(file), str(file.with_name("states.npz")))
        episode = Episode(
            trial=TRIAL, attempt=0, outcome=Outcome.SUCCESS, steps=2, total_reward=1, files=files
        )
        ledger.on(EpisodesSealed(time=1.0, episodes=[episode]))
        ledger.flush()
        (counted,) = ledger.episodes()
    assert [Path(file).name for file in counted.files] == ["states.npz"]
    assert [path.name for path in (tmp_path / files[0]).parent.iterdir()] == ["states.npz"]
    assert load_steps(tmp_path, [TRIAL])["step"].to_pylist() == [0, 1, 2]


def test_file_that_cannot_be_read_stops_the_run_and_names_it(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path, [TRIAL], {})
    ledger.attach(StepRows(tmp_path))
    ledger.on(AttemptsBegan(time=0.0, lanes=[0], trials=[TRIAL], attempts=[0]))
    (tmp_path / FILE).write_bytes(b"nonsense")
    episode = Episode(
        trial=TRIAL, attempt=0, outcome=Outcome.SUCCESS, steps=2, total_reward=1, files=(FILE,)
    )
    ledger.on(EpisodesSealed(time=1.0, episodes=[episode]))
    with pytest.raises(RunFolderError, match=r"steps\.rows' cannot be read"):
        ledger.flush()
    with pytest.raises(RunFolderError):
        ledger.close()


def test_worker_needs_neither_pyarrow_nor_sqlite_for_the_sink() -> None:
    code = (
        "import sys, hocket.workers.sinks.steps as s; s.StepsSink(); "
        "sys.exit(' '.join({'pyarrow', 'sqlite3', 'torch'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
