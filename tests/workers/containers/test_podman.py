"""Workers in real containers, where Podman can be had."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket.core.data import Ref
from hocket.testing import check_runtime
from hocket.workers.containers.command import Command
from hocket.workers.containers.images import build_once
from hocket.workers.containers.runtime import PodmanRuntime
from hocket.workers.inbox import LaneFailed, LanesExecuted, LanesReady, LanesUp
from support.podman import IMAGE, config, containers, make_runtime, mounts, podman
from support.processes import DEADLINE_S, wait_until
from support.rig import Rig, trials

__all__ = ["podman"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("podman"), pytest.mark.timeout(300)]

KILLS = 20
ENGINE = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np
from support.podman import make_runtime
from support.rig import Rig
from hocket.workers.inbox import LanesReady
with Rig(runtime=make_runtime(), toy={{"length_min": 10**6, "length_max": 10**6}}) as rig:
    print("started", flush=True)
    rig.begin()
    rig.wait(LanesReady)
    print("ready", flush=True)
    rig.execute(np.zeros((1000, 4)))
    while True:
        rig.hear()
"""


def ours() -> list[str]:
    return [name for name in containers() if f"-{os.getpid()}-" in name]


def test_containers_keep_every_rule_of_a_runtime() -> None:
    check_runtime(make_runtime)
    assert ours() == []


def test_trials_are_the_same_to_the_bit_and_arrays_are_shared_through_the_wall(
    tmp_path: Path,
) -> None:
    planned = [*trials(3), *trials(2, "image")]
    sinks = (Ref(name="steps"), Ref(name="states"))
    with Rig(sinks=sinks, folder=str(tmp_path / "here")) as rig:
        expected = rig.play(planned)
    folder = str(tmp_path / "there")
    with Rig(sinks=sinks, folder=folder, runtime=make_runtime(), transport="shm") as rig:
        assert rig.play(planned) == expected
    here, there = (
        sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*.*"))
        for name in ("here", "there")
    )
    assert here == there


def test_metaworld_in_a_container_is_metaworld_with_its_pictures_and_videos(
    tmp_path: Path,
) -> None:
    pytest.importorskip("metaworld")
    settings = {"env": "metaworld:reach-v3", "policy": "reference", "episodes": 2, "max_steps": 30}
    reports = []
    for number, runtime in enumerate(("local", f"podman:{IMAGE}")):
        there = {} if runtime == "local" else {"python": sys.executable, "mounts": mounts()}
        report = hocket.evaluate(
            **settings,
            lanes=2,
            runtime=runtime,
            runtime_config=there,
            video="first:1",
            out=tmp_path / str(number),
        )
        assert report.overall.errors == 0
        reports.append([(e.trial.id, e.total_reward, e.steps) for e in report.episodes])
    assert sorted(reports[0]) == sorted(reports[1])
    films = [sorted(p.name for p in (tmp_path / n).rglob("*.mp4")) for n in ("0", "1")]
    assert films[0] == films[1] != []


@pytest.mark.parametrize("deed", ["kill", "pause"])
def test_a_container_that_is_killed_or_paused_costs_its_attempt(
    deed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hocket.workers.supervisor._SILENT_S", 3.0)
    with Rig(runtime=make_runtime(), toy={"length_min": 10**6, "length_max": 10**6}) as rig:
        rig.begin()
        rig.wait(LanesReady)
        (name,) = ours()
        subprocess.run(["podman", deed, name], check=True, capture_output=True)
        if deed == "pause":
            rig.execute(np.zeros((5, 4)))
        failed = rig.wait(LaneFailed)
        assert failed.kind == {"kill": "WorkerCrashed", "pause": "WorkerHung"}[deed]
        rig.wait(LanesUp)
        rig.begin(attempt=1)
        rig.wait(LanesReady)
        rig.execute(np.zeros((5, 4)), attempt=1)
        rig.wait(LanesExecuted)
    assert ours() == []


def test_a_container_that_outgrows_its_memory_says_so() -> None:
    toy = {"length_min": 10**6, "length_max": 10**6, "leak": 1 << 22}
    with Rig(runtime=make_runtime(memory="200m"), toy=toy) as rig:
        rig.begin()
        rig.wait(LanesReady)
        rig.execute(np.zeros((5000, 4)))
        failed = rig.wait(LaneFailed)
    assert "SIGKILL" in failed.message or "killed" in failed.message


def test_an_image_that_is_not_here_is_told_with_what_helps() -> None:
    with Rig(runtime=PodmanRuntime("localhost/none:1", config())) as rig:
        failed = rig.wait(LaneFailed)
    assert failed.kind == "WorkerStart"
    assert "There is no image 'localhost/none:1' here" in failed.message
    assert "podman pull localhost/none:1" in failed.message


def test_an_image_without_the_interpreter_is_told_so() -> None:
    with Rig(runtime=make_runtime(python="/no/python")) as rig:
        assert "--runtime.python" in rig.wait(LaneFailed).message


def test_each_episode_gets_a_container_of_its_own_where_isolation_is_asked_for() -> None:
    seen = set()
    toy = {"length_min": 3, "length_max": 3}
    with Rig(runtime=make_runtime(isolate=True), toy=toy) as rig:
        for attempt in range(2):
            rig.wait(LanesUp)
            rig.begin(attempt=attempt)
            rig.wait(LanesReady)
            seen |= set(ours())
            rig.execute(np.zeros((5, 4)), attempt=attempt)
            rig.wait(LanesExecuted)
    assert len(seen) >= 2


def test_two_runs_that_start_at_once_build_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    context = tmp_path / "context"
    context.mkdir()
    (context / "file").write_text(str(time.time_ns()))
    (context / "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY file /file\n")
    command = Command.find(("podman",))
    builds = []
    build = Command.build

    def counted(self: Command, tag: str, *rest: str) -> None:
        builds.append(tag)
        build(self, tag, *rest)

    monkeypatch.setattr(Command, "build", counted)
    threads = [threading.Thread(target=build_once, args=(command, str(context))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(builds) == 1
    runtime = PodmanRuntime("", config(dockerfile=str(context)))
    with Rig(runtime=runtime) as rig:
        rig.begin()
        rig.wait(LanesReady)
    assert len(builds) == 1


@pytest.mark.timeout(900)
def test_no_container_and_no_folder_outlives_an_engine_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    chance = random.Random(os.urandom(4))
    code = ENGINE.format(tests=str(Path(__file__).parents[2]))
    took = []
    for number in range(KILLS):
        engine = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path
        )
        assert engine.stdout is not None
        with engine.stdout:
            engine.stdout.readline()
            if number % 2:
                engine.stdout.readline()
            time.sleep(chance.random() * 2)
            engine.send_signal(signal.SIGKILL)
            engine.wait()
        began, mark = time.monotonic(), f"-{engine.pid}-"
        wait_until(lambda mark=mark: not any(mark in name for name in containers()))
        took.append(time.monotonic() - began)
    with capsys.disabled():
        sys.stderr.write(
            f"After {KILLS} kills the last container was gone within {max(took):.1f} s, half of "
            f"them within {statistics.median(took):.1f} s.\n"
        )
    with Rig(runtime=make_runtime()) as rig:
        rig.wait(LanesUp)
    assert list(tmp_path.glob("hocket-link-*")) == []


def test_the_next_start_sweeps_what_could_not_end_by_itself(tmp_path: Path) -> None:
    code = ENGINE.format(tests=str(Path(__file__).parents[2]))
    engine = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    with engine.stdout:
        engine.stdout.readline()
        engine.stdout.readline()
    (name,) = [name for name in containers() if f"-{engine.pid}-" in name]
    subprocess.run(["podman", "pause", name], check=True, capture_output=True)
    engine.kill()
    engine.wait()
    assert name in containers()
    with Rig(runtime=make_runtime()) as rig:
        rig.wait(LanesUp)
        assert name not in containers()
