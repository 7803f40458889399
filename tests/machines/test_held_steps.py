"""Steps that come from sites become rows of a table without a file of their own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.core.contracts.recorder import StepRecord
from hocket.core.data import Outcome
from hocket.errors import WireError
from hocket.machines import protocol
from hocket.machines.leasing.entries import LeaseId
from hocket.records.step_rows import load_steps
from hocket.workers.sinks.steps import FILE, StepsConfig, StepsTrack
from support.desk import Desk


def some_steps(folder: Path, count: int = 4) -> bytes:
    """A file as the sink leaves it."""
    track = StepsTrack(StepsConfig(), folder, "reach")
    for step in range(count):
        track.step(
            StepRecord(
                step=step,
                action=np.full(2, 0.5) if step else None,
                reward=float(step),
                terminated=False,
                truncated=False,
                success=None,
                chunk=0,
                age=step,
                observation=None,
                state=None,
            )
        )
    (path,) = track.seal(Outcome.SUCCESS)
    return Path(path).read_bytes()


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    return some_steps(tmp_path / "drawn")


def leased(folder: Path, **settings: Any) -> tuple[Desk, LeaseId]:
    """A driver, and the attempt that it leased to site "a"."""
    desk = Desk(folder, **settings)
    desk.join("a")
    (lease,) = desk.leases("a")
    return desk, lease


@pytest.mark.parametrize("room", [1 << 20, 0])
def test_steps_have_no_file_where_there_is_room_for_them(
    tmp_path: Path, data: bytes, room: int
) -> None:
    desk, lease = leased(tmp_path / "run", room=room)
    desk.pieces("a", lease, data, FILE)
    assert (tmp_path / "run" / "episodes").exists() == (not room)
    desk.seal("a", lease, files=[FILE])
    assert desk.settled("a") == [lease]
    assert load_steps(tmp_path / "run")["reward"].to_pylist() == [0.0, 1.0, 2.0, 3.0]
    assert not list((tmp_path / "run").glob("episodes/*/*/*"))


def test_what_holds_no_steps_is_refused_before_its_episode_counts(
    tmp_path: Path, data: bytes
) -> None:
    desk, lease = leased(tmp_path / "run")
    for wrong in (b"", b"data", data[:-1], data[: len(data) // 2], data.replace(b"step", b"pets")):
        with pytest.raises(WireError, match="cannot be read"):
            desk.pieces("a", lease, wrong, FILE)
    with pytest.raises(WireError, match="did not arrive"):
        desk.driver.hear("a", protocol.FilePiece(*lease, FILE, 0, data, b"other"), 0.0)
    with pytest.raises(WireError, match="Not all of the files"):
        desk.seal("a", lease, files=[FILE])


def test_steps_that_were_sent_must_be_told_and_come_once(tmp_path: Path, data: bytes) -> None:
    desk, lease = leased(tmp_path / "run")
    desk.pieces("a", lease, data, FILE)
    with pytest.raises(WireError, match="twice"):
        desk.pieces("a", lease, data, FILE)
    with pytest.raises(WireError, match="Not all of the files"):
        desk.seal("a", lease, files=[])


def test_steps_of_a_lost_attempt_make_room_for_others(tmp_path: Path, data: bytes) -> None:
    desk = Desk(tmp_path / "run", room=len(data))
    for site in ("a", "b"):
        desk.join(site)
        lease, *_ = desk.leases(site)
        desk.pieces(site, lease, data, FILE)
        assert not (tmp_path / "run" / "episodes").exists()
        desk.driver.bury_site(site, 0.0, "is gone")
    desk.join("c")
    lease, *_ = desk.leases("c")
    desk.pieces("c", lease, data, FILE)
    desk.driver.hear("c", protocol.Returned(*lease, "Error: no", True, [FILE]), 0.0)
    desk.driver.turn(0.0)
    lease, *_ = desk.leases("c")
    desk.pieces("c", lease, data, FILE)
    assert not (tmp_path / "run" / "episodes").exists()


def test_a_site_that_joins_anew_after_the_steps_brings_them_again(
    tmp_path: Path, data: bytes
) -> None:
    desk, lease = leased(tmp_path / "run")
    desk.pieces("a", lease, data, FILE)
    desk.driver.disconnect("a")
    desk.join("a", holds=[lease])
    desk.pieces("a", lease, data, FILE)
    desk.seal("a", lease, files=[FILE])
    assert desk.settled("a") == [lease]
    assert load_steps(tmp_path / "run").num_rows == 4


def test_a_driver_that_is_killed_with_steps_in_memory_loses_and_doubles_nothing(
    tmp_path: Path, data: bytes
) -> None:
    desk, lease = leased(tmp_path / "run", count=1)
    desk.pieces("a", lease, data, FILE)
    # What a kill leaves: nothing was accepted, and nothing of the steps is on the disk.
    shutil.copytree(tmp_path / "run", tmp_path / "killed")
    desk.ledger.close()
    again = Desk(tmp_path / "killed", count=1, again=True)
    again.join("a", holds=[lease])
    for _ in range(2):
        again.pieces("a", lease, data, FILE)
        again.seal("a", lease, files=[FILE])
    assert set(again.settled("a")) == {lease}
    assert load_steps(tmp_path / "killed").num_rows == 4
