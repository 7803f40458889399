from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as arrays

from hocket.core.contracts.recorder import AttemptStart, StepRecord
from hocket.core.data import Array, Outcome, Trial
from hocket.core.specs import TaskInfo
from hocket.errors import EnvError, RunFolderError
from hocket.workers.sinks.states import (
    FILE,
    ROWS_FILE,
    StatesConfig,
    StatesSink,
    load_states,
    save_states,
)

TRIAL = Trial(suite="toy", task="count", seed=0)


def start(folder: Path, **record: object) -> AttemptStart:
    return AttemptStart(
        trial=TRIAL,
        attempt=0,
        task=TaskInfo(name="count"),
        prompt="",
        folder=str(folder),
        record=record,
    )


def step(number: int, state: Array | None) -> StepRecord:
    return StepRecord(
        step=number,
        action=None,
        reward=0.0,
        terminated=False,
        truncated=False,
        success=None,
        chunk=0,
        age=0,
        observation=None,
        state=state,
    )


@given(arrays.arrays(np.float64, arrays.array_shapes(min_dims=2, max_dims=2, min_side=1)))
def test_states_come_back_to_the_bit(tmp_path_factory: pytest.TempPathFactory, states) -> None:
    path = tmp_path_factory.mktemp("states") / FILE
    save_states(path, states)
    assert load_states(path).tobytes() == states.tobytes()


def test_numbers_that_never_change_are_kept_once(tmp_path: Path) -> None:
    states = np.tile(np.arange(300.0), (500, 1))
    states[:, 7] = np.arange(500)
    states[:, 8] = np.nan
    save_states(tmp_path / "a", states)
    assert (tmp_path / "a").stat().st_size < 500 * 8 + 300 * 9 + 2000
    assert np.array_equal(load_states(tmp_path / "a"), states, equal_nan=True)


def test_negative_zero_is_not_zero(tmp_path: Path) -> None:
    save_states(tmp_path / "a", np.array([[0.0], [-0.0]]))
    assert np.signbit(load_states(tmp_path / "a")).ravel().tolist() == [False, True]


@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.ERROR])
def test_a_sealed_attempt_has_one_state_for_each_step(tmp_path: Path, outcome: Outcome) -> None:
    sink = StatesSink()
    assert sink.needs_of(TaskInfo(name=""), {}, ()).states
    track = sink.open(start(tmp_path / "e"))
    for i in range(4):
        track.step(step(i, np.array([i, 5.0])))
    name = FILE if outcome is Outcome.ERROR else ROWS_FILE
    assert list(track.seal(outcome)) == [str(tmp_path / "e" / name)]
    assert load_states(tmp_path / "e" / name).tolist() == [[i, 5.0] for i in range(4)]


def test_an_env_without_states_leaves_no_file(tmp_path: Path) -> None:
    track = StatesSink().open(start(tmp_path / "e"))
    track.step(step(0, None))
    assert track.seal(Outcome.SUCCESS) == ()
    assert not (tmp_path / "e").exists()


def test_states_of_attempts_that_nobody_films_can_be_left_out(tmp_path: Path) -> None:
    sink = StatesSink("", StatesConfig(only_with_video=True))
    for record, is_kept in (({}, False), ({"video": "all"}, True), ({"images": "all"}, True)):
        assert sink.needs_of(TaskInfo(name=""), record, ()).states is is_kept
        track = sink.open(start(tmp_path / str(record), **record))
        track.step(step(0, np.zeros(2)))
        assert bool(track.seal(Outcome.SUCCESS)) is is_kept


def test_a_state_that_changes_its_size_is_the_envs_error(tmp_path: Path) -> None:
    track = StatesSink().open(start(tmp_path))
    track.step(step(0, np.zeros(2)))
    with pytest.raises(EnvError, match=r"from \(2,\) to \(3,\) at step 1"):
        track.step(step(1, np.zeros(3)))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nothing", b"\x93NUMPY"])
def test_a_file_that_is_no_states_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(RunFolderError, match="a' cannot be read"):
        load_states(tmp_path / "a")


def test_no_flipped_bit_of_states_is_read_as_other_numbers(tmp_path: Path) -> None:
    states = np.arange(12.0).reshape(4, 3)
    path = tmp_path / "a"
    save_states(path, states)
    whole = path.read_bytes()
    refused = 0
    for at in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        try:
            assert load_states(path).tobytes() == states.tobytes()
        except RunFolderError:
            refused += 1
    assert refused > len(whole) // 6
