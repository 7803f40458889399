"""A worker that is reached by messages alone does what one does that shares memory."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from hocket.core.contracts.link import Link
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Ref, Trial
from hocket.errors import UsageError, WorkerFailed
from hocket.workers import supervisor
from hocket.workers.fleet import Fleet, FleetConfig
from hocket.workers.local.runtime import LocalRuntime
from hocket.workers.notices import (
    LaneFailed,
    LanesBegun,
    LaneSealed,
    LanesExecuted,
    LanesRecycled,
    LanesUp,
)
from hocket.workers.remote.link import dial
from hocket.workers.remote.loopback import LoopbackRuntime
from support.processes import DEADLINE_S, wait_until
from support.relayed import Relayed
from support.rig import Rig, trials
from support.row_toys import KEY

pytestmark = pytest.mark.heavy

ROWS = "support.row_toys:RowToys"
NUMBERS = (Ref(name="steps"), Ref(name="states"))


def files_of(folder: Path) -> dict[str, bytes]:
    found = folder.rglob("*")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found if path.is_file()}


def test_trials_are_the_same_to_the_bit_and_files_lie_where_the_engine_wants_them(
    tmp_path: Path,
) -> None:
    planned = [*trials(3), *trials(2, "image")]
    with Rig(sinks=NUMBERS, folder=str(tmp_path / "here")) as rig:
        expected = rig.play(planned)
    with Rig(sinks=NUMBERS, folder=str(tmp_path / "far"), runtime=Relayed()) as rig:
        assert rig.play(planned) == expected
        sealed = [notice for notice in rig.heard if isinstance(notice, LaneSealed)]
    here, far = files_of(tmp_path / "here"), files_of(tmp_path / "far")
    # (A zip file has the time in it: archives of states are compared by name alone.)
    assert sorted(far) == sorted(here)
    assert {k: v for k, v in far.items() if k.endswith(".rows")} == {
        k: v for k, v in here.items() if k.endswith(".rows")
    }
    assert sorted(name for notice in sealed for name in notice.files) == sorted(here)
    for name in here:
        if name.endswith(".npz"):
            with np.load(tmp_path / "here" / name) as a, np.load(tmp_path / "far" / name) as b:
                assert {key: a[key].tobytes() for key in a} == {key: b[key].tobytes() for key in b}


def test_a_file_of_many_pieces_arrives_before_its_episode_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far_sinks.py").write_text(
        "import os\n"
        "from hocket.core.contracts.recorder import SinkNeeds\n"
        "class Large:\n"
        "    needs = SinkNeeds()\n"
        "    def open(self, start):\n"
        "        self.folder = start.folder\n"
        "        return self\n"
        "    def step(self, record): ...\n"
        "    def discard(self): ...\n"
        "    def seal(self, outcome):\n"
        "        os.makedirs(self.folder)\n"
        "        paths = [os.path.join(self.folder, n) for n in ('a.bin', 'empty.bin')]\n"
        "        for path, size in zip(paths, (1_000_003, 0)):\n"
        "            with open(path, 'wb') as file:\n"
        "                file.write(bytes(range(256)) * (size // 256) + b'x' * (size % 256))\n"
        "        return paths\n"
        "def make():\n"
        "    return Large()\n"
        "make.files = ('*.bin',)\n"
    )
    monkeypatch.chdir(tmp_path)
    toy = {"length_min": 3, "length_max": 3}
    sinks = (Ref(name="far_sinks:make"),)
    with Rig(toy=toy, sinks=sinks, folder=str(tmp_path / "run"), runtime=Relayed()) as rig:
        for attempt in range(2):
            rig.begin(attempt=attempt)
            rig.wait(LanesBegun)
            rig.execute(np.zeros((4, 4)), attempt=attempt)
            sealed = rig.wait(LaneSealed)
            found = {Path(name).name: tmp_path / "run" / name for name in sealed.files}
            assert found["a.bin"].stat().st_size == 1_000_003
            assert found["empty.bin"].stat().st_size == 0
            assert found["a.bin"].parent.name == str(attempt)


def test_a_recorder_that_does_not_declare_its_files_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret_sinks.py").write_text("def make(): ...\n")
    monkeypatch.chdir(tmp_path)
    spec = WorkerSpec(suites={"toy": Ref(name="toy")}, sinks=(Ref(name="secret_sinks:make"),))
    with pytest.raises(UsageError, match="does not declare the names of its files"):
        LoopbackRuntime().start(spec)


def test_a_worker_that_cannot_film_is_refused_at_the_start_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where the image has no PyAV: the worker looks for the module by name.
    from hocket.core import plugins

    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'av' else find(name, *a)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert plugins.builtin()["recorders"]["video"].modules == ("av",)
    with Rig(sinks=(Ref(name="video"),), folder=str(tmp_path), runtime=Relayed()) as rig:
        lost = rig.wait(LaneFailed)
    assert lost.kind == "WorkerStart"
    assert "needs the package 'av'" in lost.message
    assert "--video none" in lost.message


@pytest.mark.parametrize(
    ("fault", "words"),
    [({"kill_at": 5}, "SIGKILL"), ({"exit_at": 5}, "exited with code")],
)
def test_how_a_worker_ended_is_told_and_its_attempt_runs_again(
    fault: dict[str, Any], words: str, tmp_path: Path
) -> None:
    toy = {**fault, "once_file": str(tmp_path / "once")}
    with Rig(runtime=Relayed(), toy=toy) as rig:
        far = rig.play(trials(2))
        (failed,) = rig.failures()
    with Rig() as rig:
        assert rig.play(trials(2)) == far
    assert failed.kind == "WorkerCrashed"
    assert words in failed.message


def test_a_worker_that_hangs_elsewhere_says_where() -> None:
    with Rig(runtime=Relayed(), toy={"hang_at": 2}, fleet={"step_timeout_s": 0.5}) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((4, 4)))
        failed = rig.wait(LaneFailed)
    assert failed.kind == "WorkerHung"
    assert "_misbehave" in failed.message


def test_a_chunk_elsewhere_can_be_recalled_and_its_memory_is_told() -> None:
    toy = {"length_min": 5000, "length_max": 5000, "step_s": 0.002}
    runtime = Relayed()
    with Rig(runtime=runtime, toy=toy) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((4000, 4)))

        def has_stepped() -> bool:
            rig.hear(0.05)
            return runtime.links[0].steps(0) > 0

        wait_until(has_stepped)
        rig.fleet.recall(0, 0, 0)
        assert 0 < rig.wait(LanesExecuted).steps[0] < 4000

        def has_told() -> bool:
            rig.hear(0.05)
            return (rig.fleet.memory(0) or 0) > 1_000_000

        wait_until(has_told)


@pytest.mark.slow
def test_a_link_on_which_nothing_moves_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_SILENT_S", 1.0)

    class Mute(Relayed):
        """Its first far end greets and says Hello, and is never heard of again."""

        def start(self, spec: WorkerSpec) -> Any:
            link = super().start(spec)
            if len(self.links) == 1:
                link._heard_at = -1e9
                link._read = lambda: None  # type: ignore[method-assign]
            return link

    runtime = Mute()
    with Rig(runtime=runtime) as rig:
        rig.fleet._workers[0].is_up = True
        assert "Nothing was heard" in rig.wait(LanesRecycled).reason
        rig.wait(LanesUp)
        assert len(runtime.links) == 2


def test_a_far_end_that_is_cut_costs_its_attempt_and_is_replaced() -> None:
    runtime = Relayed()
    with Rig(runtime=runtime, toy={"length_min": 500, "length_max": 500}) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        runtime.far_ends[0].shutdown(socket.SHUT_RDWR)
        assert rig.wait(LaneFailed).gone
        rig.wait(LanesUp)


def test_rows_of_a_batched_simulator_work_through_a_stream(tmp_path: Path) -> None:
    planned = [Trial(suite=ROWS, task=t, seed=s) for t in ("walk", "run") for s in (0, 5)]
    seen = []
    for number, runtime in enumerate((LocalRuntime(), Relayed())):
        spec = WorkerSpec(
            suites={ROWS: Ref(name=ROWS)},
            lanes=4,
            sinks=(Ref(name="steps"),),
            folder=str(tmp_path / str(number)),
        )
        with Fleet(runtime, spec, FleetConfig(lanes=4)) as fleet:
            fleet.start()
            _wait(fleet, LanesUp)
            fleet.begin(
                [0, 1, 2, 3], [0] * 4, planned, [3] * 4, final_observation=True, record=[{}] * 4
            )
            _wait(fleet, LanesBegun)
            fleet.execute([0, 1, 2, 3], [0] * 4, [0] * 4, [np.full((5, 3), 0.1)] * 4)
            sealed: list[LaneSealed] = []
            while len(sealed) < 4:
                sealed += [n for n in fleet.poll(DEADLINE_S) if isinstance(n, LaneSealed)]
            arrays = [fleet.arrays(lane)[KEY].copy().tobytes() for lane in range(4)]
        files = files_of(tmp_path / str(number))
        assert len(files) == 4
        assert sorted(files) == sorted(name for one in sealed for name in one.files)
        seen.append((arrays, files))
    assert seen[0] == seen[1]


def test_the_far_end_goes_with_its_engine() -> None:
    from hocket.core import wire

    runtime = Relayed()
    link = runtime.start(WorkerSpec(suites={"toy": Ref(name="toy")}))
    messages: list[wire.Message] = []

    def has_hello() -> bool:
        messages.extend(link.receive())
        return bool(messages)

    wait_until(has_hello)
    pid = messages[0].pid  # type: ignore[union-attr]
    os.kill(pid, signal.SIGSTOP)  # Not even a worker that is stopped stays.
    runtime.close()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def _wait(fleet: Fleet, kind: type[Any]) -> None:
    found = 0
    while found < 4:
        found += sum(len(n.lanes) for n in fleet.poll(DEADLINE_S) if isinstance(n, kind))


class Preparing:
    """A runtime that makes ready for its workers for as long as a test wants."""

    def __init__(self) -> None:
        self.is_preparing = True
        self._end = threading.Event()

    def start(self, spec: WorkerSpec) -> Link:
        def attach(stream: socket.socket) -> NoReturn:
            with stream:
                self._end.wait(DEADLINE_S)
            raise WorkerFailed("It is over.")

        return dial(spec, attach)

    def close(self) -> None:
        self._end.set()


class EndsAtOnce:
    """A runtime whose streams end before the thread that opened them has said what it opened."""

    is_preparing = False

    def start(self, spec: WorkerSpec) -> Link:
        def attach(stream: socket.socket) -> EndsAtOnce:
            stream.shutdown(socket.SHUT_RDWR)
            stream.close()
            time.sleep(0.3)
            return self

        return dial(spec, attach)

    def end(self) -> None: ...

    def explain(self) -> str:
        return "Nobody is at home."

    def close(self) -> None: ...


def test_a_stream_that_ends_at_once_is_explained_too() -> None:
    with Rig(runtime=EndsAtOnce()) as rig:
        assert "Nobody is at home." in rig.wait(LaneFailed).message


def test_no_worker_is_blamed_while_its_runtime_makes_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "_FAILED_STARTS", 1)
    monkeypatch.setattr("hocket.workers.remote.link._SPEAK_S", 0.1)
    runtime = Preparing()
    spec = WorkerSpec(suites={"toy": Ref(name="toy")})
    with Fleet(runtime, spec, FleetConfig(lanes=1, start_timeout_s=0.3)) as fleet:
        fleet.start()
        began = time.monotonic()
        while time.monotonic() < began + 1.0:
            assert fleet.poll(0.2) == []
        runtime.is_preparing = False
        failed: list[LaneFailed] = []
        while not failed:
            failed = [n for n in fleet.poll(DEADLINE_S) if isinstance(n, LaneFailed)]
    assert "--start-timeout" in failed[0].message
