"""States on their way from a sink's file into the table, and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hocket.core.data import Array, Episode, Outcome, Trial
from hocket.core.events import AttemptsBegan, EpisodesSealed
from hocket.errors import DamagedSegmentError, RunFolderError
from hocket.records.evidence import salvage
from hocket.records.folder import RunFolder
from hocket.records.ledger.ledger import Ledger
from hocket.records.ledger.writer import LedgerConfig
from hocket.records.parquet import find_damage
from hocket.records.step_rows import KeptStates, StateRows
from hocket.workers.sinks.states import FILE, ROWS_FILE, load_states, save_states

QUICK = LedgerConfig(group_s=0.001)


def states_of(trial: Trial, size: int = 2) -> Array:
    return np.arange(4.0)[:, None] + np.full(size, 10.0 * trial.seed)


def plan(count: int) -> list[Trial]:
    return [Trial("toy", "count", seed) for seed in range(count)]


def end(ledger: Ledger, trial: Trial, states: Array | None) -> Episode:
    """An attempt begins and ends, with the file that its sink left."""
    ledger.on(AttemptsBegan(time=0.0, lanes=[0], trials=[trial], attempts=[0]))
    files: tuple[str, ...] = ()
    if states is not None:
        path = ledger.folder.attempt(trial, 0) / ROWS_FILE
        save_states(path, states)
        files = (str(path.relative_to(ledger.folder.root)),)
    episode = Episode(trial, 0, Outcome.SUCCESS, 3, 1.0, files=files)
    ledger.on(EpisodesSealed(time=1.0, episodes=[episode]))
    return episode


def make_run(root: Path, trials: Sequence[Trial], *, size: int = 2) -> list[Episode]:
    """A run whose episodes are committed one at a time, so that segments are merged."""
    episodes = []
    with Ledger.create(root, trials, {}, config=QUICK) as ledger:
        ledger.attach(StateRows(root))
        for trial in trials:
            episodes.append(end(ledger, trial, states_of(trial, size)))
            ledger.flush()
    return episodes


@pytest.mark.parametrize(("size", "groups"), [(2, 1), (20_000, 9)])
def test_every_episode_has_its_own_states_and_no_file(
    tmp_path: Path, size: int, groups: int
) -> None:
    """Of larger ones a row group has few, also in a merged segment."""
    episodes = make_run(tmp_path, plan(18), size=size)
    kept = KeptStates(tmp_path)
    for episode in reversed(episodes):
        assert kept.has(episode)
        assert np.array_equal(kept.load(episode), states_of(episode.trial, size))
    assert not list((tmp_path / "episodes").rglob("*"))
    (segment,) = (tmp_path / "states").iterdir()
    assert pq.ParquetFile(segment).num_row_groups == groups


def test_an_episode_without_states_has_none(tmp_path: Path) -> None:
    with Ledger.create(tmp_path, plan(2), {}, config=QUICK) as ledger:
        ledger.attach(StateRows(tmp_path))
        episodes = [end(ledger, plan(2)[0], None), end(ledger, plan(2)[1], np.zeros((4, 1)))]
        ledger.flush()
    kept = KeptStates(tmp_path)
    assert [kept.has(episode) for episode in episodes] == [False, True]
    assert kept.load(episodes[0]) is None


def test_a_file_of_an_older_run_is_found(tmp_path: Path) -> None:
    trial = Trial("toy", "count", 0)
    save_states(RunFolder.at(tmp_path).attempt(trial, 0) / FILE, states_of(trial))
    kept, episode = KeptStates(tmp_path), Episode(trial, 0, Outcome.SUCCESS, 3, 1.0)
    assert kept.has(episode)
    assert np.array_equal(kept.load(episode), states_of(trial))


def test_a_segment_that_is_merged_meanwhile_is_looked_for_again(tmp_path: Path) -> None:
    trials = plan(20)
    with Ledger.create(tmp_path, trials, {}, config=QUICK) as ledger:
        ledger.attach(StateRows(tmp_path))
        first = end(ledger, trials[0], states_of(trials[0]))
        ledger.flush()
        kept = KeptStates(tmp_path)
        assert kept.has(first)
        (before,) = (tmp_path / "states").iterdir()
        for trial in trials[1:]:
            end(ledger, trial, states_of(trial))
            ledger.flush()
    assert not before.exists()
    assert np.array_equal(kept.load(first), states_of(trials[0]))


def test_damaged_states_are_refused_and_told_of(tmp_path: Path) -> None:
    (episode,) = make_run(tmp_path, plan(1))
    (segment,) = (tmp_path / "states").iterdir()
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(DamagedSegmentError, match="is damaged"):
        KeptStates(tmp_path).load(episode)
    (told,) = find_damage(tmp_path)
    assert "films and replays do" in told


def test_what_is_no_states_is_refused_by_its_trial(tmp_path: Path) -> None:
    with Ledger.create(tmp_path, plan(1), {}, config=QUICK) as ledger:
        recorder = StateRows(tmp_path)
        ledger.attach(recorder)
        assert recorder.receive(plan(1)[0], 0, b"nonsense")
        episode = end(ledger, plan(1)[0], None)
        ledger.flush()
    with pytest.raises(RunFolderError, match="toy/count/0 cannot be read"):
        KeptStates(tmp_path).load(episode)


def test_bytes_of_an_episode_that_came_too_late_take_no_room(tmp_path: Path) -> None:
    first, second = plan(2)
    with Ledger.create(tmp_path, plan(2), {}, config=QUICK) as ledger:
        recorder = StateRows(tmp_path, room=100)
        ledger.attach(recorder)
        episode = end(ledger, first, None)
        assert recorder.receive(first, 0, bytes(60))
        assert not recorder.receive(second, 0, bytes(60))
        ledger.on(EpisodesSealed(time=1.0, episodes=[episode]))
        assert recorder.receive(second, 0, bytes(60))


def test_a_lost_attempt_keeps_what_was_to_go_into_the_table(tmp_path: Path) -> None:
    save_states(tmp_path / "0" / ROWS_FILE, np.ones((3, 2)))
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / ROWS_FILE).write_bytes(b"nonsense")
    assert salvage(tmp_path / "0") == [tmp_path / "0" / FILE]
    assert load_states(tmp_path / "0" / FILE).tolist() == [[1.0, 1.0]] * 3
    assert salvage(tmp_path / "1") == []
