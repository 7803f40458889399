"""One env in the caller's own process and thread."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Ref
from hocket.errors import UsageError
from hocket.testing.toy import ToyConfig, ToyEnv
from hocket.workers.inline import InlineRuntime
from hocket.workers.notices import LanesBegun, LanesExecuted, LanesRecycled
from support.processes import children
from support.rig import Rig, trials

SPEC = WorkerSpec(suites={"toy": Ref(name="toy")})


class HereEnv(ToyEnv):
    """Remembers where it ran."""

    seen: list[tuple[int, int]] = []  # noqa: RUF012 - shared on purpose

    def advance(self, action: object) -> tuple[float, bool, bool, dict[str, object]]:
        self.seen.append((os.getpid(), threading.get_ident()))
        return super().advance(action)


def make() -> HereEnv:
    return HereEnv("count", ToyConfig())


def test_env_runs_in_the_callers_process_and_thread() -> None:
    before = children(os.getpid())
    with Rig(runtime=InlineRuntime(), suite=Ref(name="test_inline:make")) as rig:
        rig.begin(task="make")
        rig.wait(LanesBegun)
        rig.execute(np.zeros((3, 4)))
        rig.wait(LanesExecuted)
        assert children(os.getpid()) == before
    assert HereEnv.seen == [(os.getpid(), threading.get_ident())] * 3


def test_arrays_are_views_that_stay() -> None:
    with Rig(runtime=InlineRuntime()) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        view = rig.fleet.arrays(0)["observation/state"]
        rig.execute(np.zeros((3, 4)))
        rig.wait(LanesExecuted)
        assert rig.fleet.arrays(0)["observation/state"] is view
        assert view[4] == np.float32(0.003)


def test_second_worker_is_refused_while_the_first_lives() -> None:
    runtime = InlineRuntime()
    first = runtime.start(SPEC)
    with pytest.raises(UsageError, match="one lane"):
        runtime.start(SPEC)
    first.kill()
    runtime.start(SPEC)
    runtime.close()
    runtime.close()


def test_other_interpreter_is_refused() -> None:
    with pytest.raises(UsageError, match="local runtime"):
        InlineRuntime().start(WorkerSpec(suites={}, python="/usr/bin/python3"))


def test_many_lanes_are_refused() -> None:
    with pytest.raises(UsageError, match="one lane"):
        InlineRuntime().start(WorkerSpec(suites={}, lanes=4))


def test_describe_needs_no_process() -> None:
    with Rig(runtime=InlineRuntime()) as rig:
        rig.fleet.close()
    rig = Rig(runtime=InlineRuntime())
    assert "count" in [task.name for task in rig.fleet.describe("toy", 5.0)]
    rig.fleet.close()


def test_recycling_closes_the_env_and_plays_on(tmp_path: Path) -> None:
    toy = {"length_min": 3, "length_max": 9}
    sinks = (Ref(name="steps"),)
    with Rig(toy=toy) as rig:
        expected = rig.play(trials(3))
    with Rig(
        runtime=InlineRuntime(),
        toy=toy,
        sinks=sinks,
        folder=str(tmp_path),
        fleet={"recycle_after": 1},
    ) as rig:
        assert rig.play(trials(3)) == expected
        assert sum(isinstance(notice, LanesRecycled) for notice in rig.heard) == 3
    assert len(list(tmp_path.rglob("steps.rows"))) == 3
