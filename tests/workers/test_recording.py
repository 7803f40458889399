"""Sinks in the worker: fed at every step, sealed after the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.core.data import Ref, Trial
from hocket.workers.notices import LaneFailed, LanesBegun, LaneSealed, LanesExecuted
from support.rig import Rig, trials

SINKS = """
import json, os, time
from hocket.core.contracts.recorder import SinkNeeds

class Sink:
    def __init__(self, needs, action="", go=""):
        self.needs, self.action, self.go = needs, action, go
    def open(self, start):
        return Track(self, start)

class Track:
    def __init__(self, sink, start):
        self.sink, self.start, self.rows = sink, start, []
    def step(self, record):
        if self.sink.action == "break" and record.step == 2:
            raise OSError("disk full")
        observation = record.observation
        self.rows.append({
            "step": record.step,
            "keys": None if observation is None else sorted(observation),
            "seen": None if observation is None else float(observation["observation/state"][4]),
            "state": None if record.state is None else record.state.tolist(),
            "age": record.age, "chunk": record.chunk,
            "success": record.success, "terminated": record.terminated,
        })
    def seal(self, outcome):
        if self.sink.action == "refuse":
            raise OSError("cannot seal")
        deadline = time.monotonic() + 90
        while self.sink.go and not os.path.exists(self.sink.go) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.makedirs(self.start.folder, exist_ok=True)
        path = os.path.join(self.start.folder, "rows.json")
        with open(path, "w") as file:
            json.dump({"outcome": outcome.value, "rows": self.rows}, file)
        return [path]
    def discard(self):
        os.makedirs(self.start.folder, exist_ok=True)
        open(os.path.join(self.start.folder, "discarded"), "w").close()

def everything():
    return Sink(SinkNeeds(observations=True, states=True, cameras=("observation/image",)))

def nothing(action: str = "", go: str = ""):
    return Sink(SinkNeeds(), action, go)
"""


@pytest.fixture(autouse=True)
def sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_sinks.py").write_text(SINKS)
    monkeypatch.chdir(tmp_path)


def rows_of(tmp_path: Path, sink: Ref, **spec: Any) -> tuple[LaneSealed, list[dict[str, Any]]]:
    toy = {"length_min": 5, "length_max": 5}
    with Rig(toy=toy, sinks=(sink,), folder=str(tmp_path / "run"), **spec) as rig:
        rig.play(trials(1, "image"), chunk=3)
        sealed = next(notice for notice in rig.heard if isinstance(notice, LaneSealed))
    loaded = json.loads((tmp_path / "run" / sealed.files[0]).read_text())
    return sealed, loaded["rows"]


def test_sink_that_needs_everything_gets_it_at_every_step(tmp_path: Path) -> None:
    sealed, rows = rows_of(tmp_path, Ref(name="some_sinks:everything"), cameras=())
    assert sealed.files == ["episodes/toy-image-0/0/rows.json"]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [round(row["seen"] * 1000) for row in rows] == [0, 1, 2, 3, 4, 5]
    assert all(row["keys"] == ["observation/image", "observation/state"] for row in rows)
    assert [row["state"][2] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row["chunk"] for row in rows] == [-1, 0, 0, 0, 1, 1]
    assert [row["age"] for row in rows] == [0, 0, 1, 2, 0, 1]
    assert rows[-1]["terminated"]
    assert not rows[-2]["terminated"]


def test_sink_cameras_alone_are_rendered_between_decisions(tmp_path: Path) -> None:
    _, rows = rows_of(tmp_path, Ref(name="some_sinks:everything"), cameras=None)
    both = ["observation/image", "observation/state", "observation/wrist_image"]
    assert [row["keys"] for row in rows] == [
        both,
        ["observation/image", "observation/state"],
        ["observation/image", "observation/state"],
        both,
        ["observation/image", "observation/state"],
        ["observation/image", "observation/state"],
    ]


def test_modest_sink_makes_nobody_observe(tmp_path: Path) -> None:
    _, rows = rows_of(tmp_path, Ref(name="some_sinks:nothing"))
    assert [row["keys"] is not None for row in rows] == [True, False, False, True, False, False]
    assert all(row["state"] is None for row in rows)


def test_sealing_does_not_delay_the_answer(tmp_path: Path) -> None:
    go = tmp_path / "go"
    sink = Ref(name="some_sinks:nothing", config={"go": str(go)})
    toy = {"length_min": 3, "length_max": 3}
    with Rig(toy=toy, sinks=(sink,), folder=str(tmp_path / "run")) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((5, 4)))
        assert rig.wait(LanesExecuted).ends[0]
        rig.begin(seed=1)
        assert not any(isinstance(notice, LaneSealed) for notice in rig.heard)
        go.touch()
        assert rig.wait(LaneSealed).files
        rig.wait(LanesBegun)


def test_recycled_worker_still_seals_its_last_attempt(tmp_path: Path) -> None:
    go = tmp_path / "go"
    sink = Ref(name="some_sinks:nothing", config={"go": str(go)})
    toy = {"length_min": 3, "length_max": 3}
    folder = str(tmp_path / "run")
    with Rig(toy=toy, sinks=(sink,), folder=folder, fleet={"recycle_after": 1}) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((5, 4)))
        assert rig.wait(LanesExecuted).ends[0]
        rig.begin(seed=1)
        rig.wait(LanesBegun)
        go.touch()
        assert rig.wait(LaneSealed).files == ["episodes/toy-count-0/0/rows.json"]


def test_sink_that_cannot_seal_is_told_apart_from_the_next_attempt(tmp_path: Path) -> None:
    sink = Ref(name="some_sinks:nothing", config={"action": "refuse"})
    toy = {"length_min": 3, "length_max": 3}
    with Rig(toy=toy, sinks=(sink,), folder=str(tmp_path / "run")) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((5, 4)))
        rig.wait(LanesExecuted)
        rig.begin(seed=1)
        failed = rig.wait(LaneFailed)
        assert (failed.sealing, failed.gone, failed.kind) == (True, False, "RecorderError")
        rig.wait(LanesBegun)


def test_sink_that_breaks_fails_the_attempt_and_discards_its_track(tmp_path: Path) -> None:
    sink = Ref(name="some_sinks:nothing", config={"action": "break"})
    with Rig(sinks=(sink,), folder=str(tmp_path / "run")) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((5, 4)))
        assert rig.wait(LaneFailed).message.startswith(
            "What records the episode raised OSError: disk full\n"
        )
    assert (tmp_path / "run/episodes/toy-count-0/0/discarded").exists()


def test_discarded_attempt_is_not_sealed(tmp_path: Path) -> None:
    sink = Ref(name="some_sinks:nothing")
    with Rig(sinks=(sink,), folder=str(tmp_path / "run")) as rig:
        rig.begin(attempt=2)
        rig.wait(LanesBegun)
        rig.fleet.discard([0], [2])
        rig.begin(seed=1)
        rig.wait(LanesBegun)
    folder = tmp_path / "run/episodes" / Trial(suite="toy", task="count", seed=0).slug / "2"
    assert [path.name for path in folder.iterdir()] == ["discarded"]
