"""Workers in real containers, where Podman can be had."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import av
import numpy as np
import pytest

import hocket
from hocket.core.contracts.link import Link
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Ref
from hocket.results.report import Report
from hocket.testing import check_runtime
from hocket.workers.containers.command import Command
from hocket.workers.containers.runtime import PodmanRuntime
from hocket.workers.notices import LaneFailed, LanesBegun, LanesExecuted, LanesUp
from hocket.workers.remote.archive import LOADER
from hocket.workers.remote.link import dial
from hocket.workers.remote.ssh import Tunnel
from hocket.workers.sinks.spill import SPILL_S
from hocket.workers.sinks.steps import load_error_steps
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
from hocket.workers.notices import LanesBegun
with Rig(runtime=make_runtime(), toy={{"length_min": 10**6, "length_max": 10**6}}) as rig:
    print("started", flush=True)
    rig.begin()
    rig.wait(LanesBegun)
    print("ready", flush=True)
    rig.execute(np.zeros((1000, 4)))
    while True:
        rig.hear()
"""


def ours() -> list[str]:
    return [name for name in containers() if f"-{os.getpid()}-" in name]


def start_beside(name: str, code: str, *more_mounts: str) -> None:
    """Start a container of no engine's that runs a program, and stays until somebody removes it."""
    words = ["podman", "run", "--detach", "--network", "none", "--name", name]
    words += [word for mount in mounts(*more_mounts) for word in ("--volume", mount)]
    subprocess.run([*words, IMAGE, sys.executable, "-c", code], check=True, capture_output=True)


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


@pytest.mark.parametrize("fault", ["raise_at", "exit_at", "hang_at"])
def test_a_lost_attempt_in_a_container_leaves_its_film_and_its_steps(
    tmp_path: Path, fault: str
) -> None:
    step_s = 0.0 if fault == "raise_at" else 2 * SPILL_S
    report = hocket.evaluate(
        env="toy:pixels",
        env_config={fault: 31, "fault_seed": 1, "length_min": 50, "step_s": step_s},
        step_timeout_s=5.0,
        policy="random",
        runtime=f"podman:{IMAGE}",
        runtime_config={"python": sys.executable, "mounts": mounts()},
        episodes=2,
        lanes=2,
        retries=0,
        video="all",
        out=tmp_path / "run",
    )
    assert report.overall.errors == 1
    (kept,) = Report.load(tmp_path / "run").kept_errors
    place = tmp_path / "run" / kept["folder"]
    assert not any(path.name.startswith(".") for path in place.iterdir())
    steps = len(load_error_steps(place / "steps.npz"))
    assert 25 <= steps <= 31
    with av.open(str(place / "image.mp4")) as container:
        filmed = sum(1 for _ in container.decode(video=0))
    assert 0 < filmed <= 31
    if fault == "raise_at":
        assert steps == filmed == 31


def test_a_container_that_is_killed_leaves_what_its_worker_wrote(tmp_path: Path) -> None:
    spilled = "hocket-link-*/link/files/*/episodes/*/0/.steps*"

    def kill() -> None:
        wait_until(lambda: any(Path(tempfile.gettempdir()).glob(spilled)))
        time.sleep(10 * SPILL_S)
        subprocess.run(["podman", "kill", ours()[0]], check=True, capture_output=True)

    killer = threading.Thread(target=kill)
    killer.start()
    report = hocket.evaluate(
        env="toy:image",
        env_config={"length_min": 60, "step_s": 2 * SPILL_S},
        policy="random",
        runtime=f"podman:{IMAGE}",
        runtime_config={"python": sys.executable, "mounts": mounts()},
        episodes=1,
        lanes=1,
        retries=0,
        video="none",
        out=tmp_path / "run",
    )
    killer.join()
    assert report.overall.errors == 1
    (kept,) = Report.load(tmp_path / "run").kept_errors
    assert len(load_error_steps(tmp_path / "run" / kept["folder"] / "steps.npz")) > 1


@pytest.mark.parametrize("deed", ["kill", "pause"])
def test_a_container_that_is_killed_or_paused_costs_its_attempt(
    deed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hocket.workers.supervisor._SILENT_S", 3.0)
    with Rig(runtime=make_runtime(), toy={"length_min": 10**6, "length_max": 10**6}) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        (name,) = ours()
        subprocess.run(["podman", deed, name], check=True, capture_output=True)
        if deed == "pause":
            rig.execute(np.zeros((5, 4)))
        failed = rig.wait(LaneFailed)
        assert failed.kind == {"kill": "WorkerCrashed", "pause": "WorkerHung"}[deed]
        rig.wait(LanesUp)
        rig.begin(attempt=1)
        rig.wait(LanesBegun)
        rig.execute(np.zeros((5, 4)), attempt=1)
        rig.wait(LanesExecuted)
    assert ours() == []


def test_a_container_that_outgrows_its_memory_says_so() -> None:
    toy = {"length_min": 10**6, "length_max": 10**6, "leak": 1 << 22}
    with Rig(runtime=make_runtime(memory="200m"), toy=toy) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((5000, 4)))
        failed = rig.wait(LaneFailed)
    assert "killed" in failed.message
    assert "--runtime.memory" in failed.message


def test_an_image_that_is_not_here_is_told_with_what_helps() -> None:
    with Rig(runtime=PodmanRuntime("localhost/none:1", config())) as rig:
        failed = rig.wait(LaneFailed)
    assert failed.kind == "WorkerStart"
    assert "There is no image 'localhost/none:1' here" in failed.message
    assert "podman pull localhost/none:1" in failed.message


def test_an_image_without_the_interpreter_is_told_so() -> None:
    with Rig(runtime=make_runtime(python="/no/python")) as rig:
        assert "--runtime.python" in rig.wait(LaneFailed).message


class Exec:
    """Workers in a container that is there already, by the standard input and output of a program:
    as one would write it for pods."""

    def __init__(self, name: str) -> None:
        self._words = ["podman", "exec", "-i", name, sys.executable, "-c", LOADER]
        self._children: list[Tunnel] = []

    def start(self, spec: WorkerSpec) -> Link:
        return dial(spec, self._attach)

    def _attach(self, stream: socket.socket) -> Tunnel:
        self._children.append(Tunnel(self._words, "podman exec", stream))
        return self._children[-1]

    def close(self) -> None:
        while self._children:
            self._children.pop().close()


def test_a_program_that_leads_into_a_container_carries_a_worker() -> None:
    name = f"exec-{os.getpid()}"
    start_beside(name, "import time; time.sleep(600)")
    try:
        with Rig() as rig:
            expected = rig.play(trials(2))
        with Rig(runtime=Exec(name)) as rig:
            assert rig.play(trials(2)) == expected
    finally:
        subprocess.run(["podman", "rm", "--force", "--time", "0", name], capture_output=True)


def test_gpus_that_are_not_there_are_told_as_such() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("This machine has GPUs.")
    with Rig(runtime=make_runtime(gpus="all")) as rig:
        assert "no such GPU to give it (--runtime.gpus)" in rig.wait(LaneFailed).message


def test_two_runtimes_of_one_process_have_containers_of_their_own() -> None:
    with Rig(runtime=make_runtime()) as one, Rig(runtime=make_runtime()) as other:
        for rig in (one, other):
            rig.wait(LanesUp)
        assert len(ours()) == 2


def test_each_episode_gets_a_container_of_its_own_where_isolation_is_asked_for() -> None:
    seen = set()
    toy = {"length_min": 3, "length_max": 3}
    with Rig(runtime=make_runtime(isolate=True), toy=toy) as rig:
        for attempt in range(2):
            rig.wait(LanesUp)
            rig.begin(attempt=attempt)
            rig.wait(LanesBegun)
            seen |= set(ours())
            rig.execute(np.zeros((5, 4)), attempt=attempt)
            rig.wait(LanesExecuted)
    assert len(seen) >= 2


SPY = """#!/bin/sh
# Podman, which notes what it is asked for. It builds once both runs have seen that no image is
# there.
echo "$1 $2" >> {notes}
if [ "$1" = build ]; then
    for _ in $(seq 600); do
        [ "$(grep -c '^image inspect' {notes})" -ge 2 ] && break
        sleep 0.1
    done
fi
exec {podman} "$@"
"""


def test_two_runs_that_start_at_once_build_once(tmp_path: Path) -> None:
    context, notes, spy = tmp_path / "context", tmp_path / "notes", tmp_path / "bin" / "podman"
    context.mkdir()
    (context / "file").write_text(str(time.time_ns()))
    (context / "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY file /file\n")
    spy.parent.mkdir()
    spy.write_text(SPY.format(notes=notes, podman=shutil.which("podman")))
    spy.chmod(0o755)
    words = [sys.executable, "-m", "hocket", "eval", "--env", "toy:count", "--policy", "random"]
    words += ["--episodes", "1", "--max-steps", "5", "--lanes", "1", "--video", "none"]
    words += ["--runtime", "podman", "--runtime.dockerfile", str(context)]
    words += ["--runtime.python", sys.executable, "--runtime.mounts", *mounts()]
    settings = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PATH": f"{spy.parent}:{os.environ['PATH']}",
    }
    runs = [
        subprocess.Popen(
            [*words, "--out", str(tmp_path / name)],
            env=settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("first", "second")
    ]
    said = [run.communicate(timeout=4 * DEADLINE_S)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    assert notes.read_text().split("\n").count("build --tag") == 1


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


def test_a_paused_container_that_ends_once_it_goes_on_is_swept_too(tmp_path: Path) -> None:
    name = "hocket-00000000-1-1-1-0"  # of a process before this machine's last start
    code = "import os, time\nwhile not os.path.exists('/gate/open'): time.sleep(0.001)"
    start_beside(name, code, f"{tmp_path}:/gate")
    subprocess.run(["podman", "pause", name], check=True, capture_output=True)
    (tmp_path / "open").touch()
    Command.find(["podman"]).sweep()
    assert name not in containers()
