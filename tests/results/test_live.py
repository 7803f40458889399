"""What a run tells of itself while it goes on."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hocket.core.data import Array, Chunk, Trial
from hocket.core.events import (
    AttemptFailed,
    AttemptsBegan,
    BatchInferred,
    ChunksExecuted,
    LanesReady,
    RunEnded,
    RunStarted,
)
from hocket.core.specs import PolicySpec
from hocket.results.showing.live import LiveStatus, is_alive, picture_file, read_status, want
from support.processes import wait_until

TRIALS = [Trial(suite="toy", task="t", seed=seed) for seed in range(3)]
LANES = [0, 1]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveStatus]:
    reader = LiveStatus(tmp_path)
    yield reader
    reader.close()


def begin(reader: LiveStatus) -> None:
    same = {"lanes": LANES, "trials": TRIALS[:2], "attempts": [0, 0]}
    policy = PolicySpec(chunk_length=4)
    reader.on(RunStarted(trials=TRIALS, done=[], lanes=2, cores=1, policy=policy))
    reader.on(AttemptsBegan(time=0.1, **same))
    reader.on(LanesReady(time=0.2, **same))


def infer(reader: LiveStatus) -> None:
    chunk = Chunk(actions=np.zeros((4, 2)), version=0, source="here")
    reader.on(
        BatchInferred(
            time=0.5, batch=1, began=0.3, ended=0.4, lanes=LANES, trials=TRIALS[:2],
            attempts=[0, 0], chunks=[0, 0], delivered=[chunk, chunk], ready=[0.2, 0.2], size=2,
        )
    )  # fmt: skip


def execute(reader: LiveStatus, at: float = 0.9, *, ends: bool = False) -> None:
    reader.on(
        ChunksExecuted(
            time=at, lanes=[1], trials=TRIALS[1:2], attempts=[0], chunks=[0], steps=[4],
            rewards=[np.zeros(4)], terminated=[ends], truncated=[False], busy=[0.1],
            observed=[0.0], final=[None],
        )
    )  # fmt: skip


def test_a_status_says_what_each_lane_does(live: LiveStatus, tmp_path: Path) -> None:
    begin(live)
    infer(live)
    execute(live)
    live.on(AttemptFailed(time=1.0, lane=0, trial=TRIALS[0], attempt=0, error="x", again=True))
    live.on(RunEnded(time=1.1, complete=False, notes={}))
    live.close()
    status = read_status(tmp_path)
    assert status is not None
    free, busy = status["lanes"]
    assert (free["lane"], free["state"]) == (0, "free")
    assert (busy["state"], busy["trial"], busy["borders"]) == ("waiting", TRIALS[1].id, [4])
    assert busy["since"] == pytest.approx(status["began"] + 0.9)
    assert (status["phase"], status["ended"], status["lost_attempts"]) == ("interrupted", True, 1)
    assert status["batch_sizes"] == [2]


def test_pictures_are_drawn_for_who_looks_and_for_nobody_else(
    live: LiveStatus, tmp_path: Path
) -> None:
    asked: list[int] = []

    def look(lane: int) -> dict[str, Array]:
        asked.append(lane)
        image = np.full((32, 48, 3), 200, np.uint8)
        return {"observation/image": image, "observation/state": np.zeros(3)}

    live.follow(look)
    begin(live)
    execute(live)
    assert asked == []
    want(tmp_path, [1])
    began = time.monotonic()

    def is_drawn() -> bool:
        execute(live, at=time.monotonic() - began)
        return picture_file(tmp_path, 1).exists()

    wait_until(is_drawn)
    # Twice a second at most, and once more for the one that is due.
    assert len(asked) <= 2 * (time.monotonic() - began) + 1
    assert picture_file(tmp_path, 1).read_bytes().startswith(b"\xff\xd8")
    live.close()
    assert not picture_file(tmp_path, 1).exists()


def test_who_no_longer_looks_is_forgotten(live: LiveStatus, tmp_path: Path) -> None:
    want(tmp_path, [1])
    old = time.time() - 6.0
    os.utime(tmp_path / "live" / "wanted", (old, old))
    live.follow(lambda lane: pytest.fail("nobody looks"))
    begin(live)
    wait_until(lambda: read_status(tmp_path) is not None)
    execute(live)


def test_a_run_is_alive_while_its_process_is_and_it_says_so(tmp_path: Path) -> None:
    here = {"host": socket.gethostname(), "process": os.getpid(), "at": 1000.0, "ended": False}
    assert is_alive(here, 1001.0)
    assert not is_alive({**here, "ended": True}, 1001.0)
    assert not is_alive({**here, "process": 2**22 + 1}, 1001.0)
    assert not is_alive(None, 1001.0)
    there = {**here, "host": "elsewhere"}
    assert is_alive(there, 1005.0)
    assert not is_alive(there, 1020.0)


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"'])
def test_a_status_that_is_damaged_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "status.json").write_text(text)
    assert read_status(tmp_path) is None


def test_a_folder_that_vanishes_costs_the_run_nothing(live: LiveStatus, tmp_path: Path) -> None:
    wait_until(lambda: (tmp_path / "live" / "status.json").exists())
    (tmp_path / "live" / "status.json").unlink()
    (tmp_path / "live").rmdir()
    (tmp_path / "live").write_text("in the way")
    begin(live)
    live.close()
