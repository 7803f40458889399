"""Faults of real worker processes: each costs one attempt, and nobody else notices."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.core.data import Ref
from hocket.core.wire import END_DIVERGED
from hocket.workers.inline import InlineRuntime
from hocket.workers.local.runtime import LocalRuntime
from hocket.workers.notices import LaneFailed, LanesBegun, LanesExecuted, LanesRecycled, LanesUp
from support.processes import DEADLINE_S, children, needs_proc, wait_until
from support.rig import Result, Rig, trials

FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"raise_at": 5}, "ToyError", "broke at step 5"),
    ({"segfault_at": 5}, "WorkerCrashed", "SIGSEGV"),
    ({"kill_at": 5}, "WorkerCrashed", "SIGKILL"),
    ({"exit_at": 5}, "WorkerCrashed", "exited with code 3"),
    ({"hang_at": 5}, "WorkerHung", "no step for"),
    ({"drop_key_at": 5}, "ObservationError", "observation/state"),
    ({"reshape_at": 5}, "ObservationError", "observation/state"),
]


@pytest.fixture(scope="module")
def expected() -> dict[str, Result]:
    """What comes of four trials without a fault."""
    with Rig(lanes=2) as rig:
        return rig.play(trials(4))


@pytest.mark.parametrize(("fault", "kind", "text"), FAULTS, ids=[str(f[0]) for f in FAULTS])
def test_fault_costs_one_attempt_and_the_others_do_not_notice(
    fault: dict[str, Any], kind: str, text: str, tmp_path: Path, expected: dict[str, Result]
) -> None:
    toy = {**fault, "fault_seed": 1, "once_file": str(tmp_path / "once")}
    # Only the env that hangs has to be waited for.
    step_timeout_s = 3.0 if kind == "WorkerHung" else DEADLINE_S
    with Rig(lanes=2, toy=toy, fleet={"step_timeout_s": step_timeout_s}) as rig:
        assert rig.play(trials(4)) == expected
        (failed,) = rig.failures()
    assert failed.kind == kind
    assert text in failed.message
    assert failed.attempt == 0
    assert failed.gone == (kind != "ObservationError")


def test_env_that_raises_says_so_in_a_sentence() -> None:
    with Rig(toy={"raise_at": 2}) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((4, 4)))
        failed = rig.wait(LaneFailed)
    assert "ToyError: This toy broke at step 2." in failed.message
    assert failed.traceback == "", "the toy is hocket's own"


def test_env_that_cannot_be_built_fails_its_attempt_and_the_worker_stays() -> None:
    with Rig(toy={"raise_in_init": True}) as rig:
        for attempt in range(2):
            rig.begin(attempt=attempt)
            failed = rig.wait(LaneFailed)
            assert (failed.kind, failed.attempt, failed.gone) == ("ToyError", attempt, False)
            assert "This toy cannot be built." in failed.message
        assert sum(isinstance(notice, LanesUp) for notice in rig.heard) == 1


def test_unknown_task_is_named_with_the_nearest() -> None:
    with Rig() as rig:
        rig.begin(task="cuont")
        failed = rig.wait(LaneFailed)
    assert failed.kind == "UnknownNameError"
    assert "Did you mean 'count'" in failed.message


@pytest.mark.parametrize("shape", [(3, 5), (4, 5), (1, 1)])
def test_chunk_that_does_not_fit_fails_its_attempt_only(shape: tuple[int, int]) -> None:
    with Rig() as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros(shape))
        failed = rig.wait(LaneFailed)
        assert (failed.kind, failed.gone) == ("ChunkShapeError", False)
        rig.begin()
        rig.wait(LanesBegun)


def test_chunk_that_is_not_finite_ends_its_episode_as_a_failure() -> None:
    with Rig() as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.full((3, 4), np.nan))
        assert rig.wait(LanesExecuted).ends[0] & END_DIVERGED
        rig.begin()
        rig.wait(LanesBegun)


def test_missing_key_is_named_when_the_policy_reads_it() -> None:
    with Rig(reads=("observation/depth",)) as rig:
        rig.begin()
        failed = rig.wait(LaneFailed)
    assert failed.kind == "ObservationError"
    assert "observation/depth" in failed.message


def test_native_crash_leaves_its_last_words() -> None:
    with Rig(toy={"segfault_at": 3}) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((4, 4)))
        failed = rig.wait(LaneFailed)
    assert "Fatal Python error: Segmentation fault" in failed.message
    assert "_misbehave" in failed.message


@needs_proc
def test_leaking_env_is_killed_in_the_middle_of_an_episode() -> None:
    toy = {"leak": 20_000_000, "step_s": 0.05, "length_min": 9999, "length_max": 9999}
    with Rig(toy=toy, fleet={"worker_memory": 300_000_000}) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((200, 4)))
        failed = rig.wait(LaneFailed)
        assert (failed.kind, failed.gone) == ("WorkerMemory", True)
        rig.wait(LanesUp)


@pytest.mark.parametrize("slow", ["build_s", "reset_s"])
def test_env_that_is_not_ready_in_time_is_given_up(
    slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Rig(toy={slow: 3600.0}) as rig:
        rig.wait(LanesUp)
        # The same limit bounds the start of a worker, which may take longer on a busy machine.
        short = dataclasses.replace(rig.fleet.config, start_timeout_s=1.0)
        monkeypatch.setattr(rig.fleet._supervisor, "_config", short)
        rig.begin()
        failed = rig.wait(LaneFailed)
        assert (failed.kind, failed.gone) == ("WorkerHung", True)


def test_hanging_env_is_told_with_the_place_where_it_hangs() -> None:
    with Rig(toy={"hang_at": 2}, fleet={"step_timeout_s": 2.0}) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((4, 4)))
        assert "toy.py" in rig.wait(LaneFailed).message


def test_slow_steps_within_the_timeout_are_progress() -> None:
    toy = {"step_s": 0.4, "length_min": 6, "length_max": 6}
    with Rig(toy=toy, fleet={"step_timeout_s": 2.0}) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((6, 4)))
        assert rig.wait(LanesExecuted).steps == [6]


def test_a_first_step_that_compiles_belongs_to_the_start_of_a_worker() -> None:
    toy = {"step_s": 2.0, "length_min": 6, "length_max": 6}
    with Rig(toy=toy, fleet={"step_timeout_s": 1.0}) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((1, 4)))
        assert rig.wait(LanesExecuted).steps == [1]
        rig.execute(np.zeros((1, 4)))
        assert "made no step" in rig.wait(LaneFailed).message


def test_worker_killed_while_idle_is_replaced_without_an_attempt_lost() -> None:
    before = set(children(os.getpid()))
    with Rig() as rig:
        rig.wait(LanesUp)
        worker = max(set(children(os.getpid())) - before)
        os.kill(worker, signal.SIGKILL)
        assert "SIGKILL" in rig.wait(LanesRecycled).reason
        rig.wait(LanesUp)
        assert rig.failures() == []


@pytest.mark.heavy
def test_zygote_that_dies_is_replaced_with_its_workers() -> None:
    before = set(children(os.getpid()))
    with Rig(lanes=2, runtime=LocalRuntime()) as rig:
        rig.begin(lane=0)
        rig.wait(LanesBegun)
        zygote = min(set(children(os.getpid())) - before)
        os.kill(zygote, signal.SIGKILL)
        failed = rig.wait(LaneFailed)
        assert failed.kind == "WorkerCrashed"
        assert "forks workers" in failed.message
        rig.begin(lane=0)
        rig.wait(LanesBegun)


def test_interpreter_that_is_not_there_is_reported_and_not_tried_forever() -> None:
    with Rig(python="/no/such/python") as rig:
        failed = rig.wait(LaneFailed)
        assert (failed.kind, failed.attempt) == ("WorkerStart", -1)
        assert "/no/such/python" in failed.message
        assert rig.fleet.poll(1.5) == []


def test_interpreter_that_cannot_run_workers_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no numpy here' >&2\nexit 7\n")
    broken.chmod(0o755)
    with Rig(python=str(broken)) as rig:
        failed = rig.wait(LaneFailed)
        assert failed.kind == "WorkerStart"
        assert "no numpy here" in failed.message
        assert "code 7" in failed.message
        rig.begin(attempt=4)
        lost = rig.wait(LaneFailed, lambda notice: notice.attempt == 4)
        assert lost.kind == "WorkerStart"


def test_output_of_envs_stays_off_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "noisy_envs.py").write_text(
        "import os, sys\n"
        "from hocket.testing.toy import ToyConfig, ToyEnv\n"
        "def make():\n"
        "    print('hear me')\n"
        "    os.system('echo and me')\n"
        "    os.write(2, b'and me too')\n"
        "    return ToyEnv('count', ToyConfig(exit_at=2))\n"
    )
    monkeypatch.chdir(tmp_path)
    with Rig(suite=Ref(name="noisy_envs:make")) as rig:
        rig.begin(task="make")
        rig.wait(LanesBegun)
        rig.execute(np.zeros((4, 4)))
        message = rig.wait(LaneFailed).message
    assert "hear me\nand me\nand me too" in message
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_chatty_env_fills_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chatty_envs.py").write_text(
        "from hocket.testing.toy import ToyConfig, ToyEnv\n"
        "class Chatty(ToyEnv):\n"
        "    def advance(self, action):\n"
        "        print('blah' * 50_000, flush=True)\n"
        "        return super().advance(action)\n"
        "def make():\n"
        "    return Chatty('count', ToyConfig(step_s=0.02, kill_at=150, length_min=999,"
        " length_max=999))\n"
    )
    monkeypatch.chdir(tmp_path)
    with Rig(suite=Ref(name="chatty_envs:make")) as rig:
        rig.begin(task="make")
        rig.wait(LanesBegun)
        rig.execute(np.zeros((200, 4)))
        failed = rig.wait(LaneFailed)
    assert failed.message.endswith("blah")
    assert len(failed.message) < 10_000


def test_env_that_calls_exit_fails_its_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving_envs.py").write_text("def make():\n    raise SystemExit('bye')\n")
    monkeypatch.chdir(tmp_path)
    with Rig(suite=Ref(name="leaving_envs:make")) as rig:
        rig.begin(task="make")
        failed = rig.wait(LaneFailed)
        assert (failed.kind, failed.gone) == ("ConfigError", False)
        assert "called sys.exit('bye')" in failed.message


def test_inline_env_that_raises_is_built_anew(tmp_path: Path, expected: dict[str, Result]) -> None:
    toy = {"raise_at": 5, "fault_seed": 1, "once_file": str(tmp_path / "once")}
    with Rig(runtime=InlineRuntime(), toy=toy) as rig:
        assert rig.play(trials(4)) == expected
        assert [failed.kind for failed in rig.failures()] == ["ToyError"]


def test_pause_of_the_parent_is_no_hang_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.workers.supervisor._PAUSE_S", 1.0)
    toy = {"step_s": 0.15, "length_min": 40, "length_max": 40}
    with Rig(toy=toy, fleet={"step_timeout_s": 2.0}) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((20, 4)))
        link = rig.fleet._workers[0].link
        assert link is not None
        # Nobody polls for 15 steps: longer than a step may take, and than what counts as a pause.
        wait_until(lambda: link.steps(0) >= 15)
        assert rig.wait(LanesExecuted).steps == [20]


@needs_proc
def test_worker_memory_is_read_from_the_process() -> None:
    with Rig() as rig:
        rig.wait(LanesUp)
        runtime = LocalRuntime()
        link = runtime.start(rig.spec)
        try:
            wait_until(lambda: (link.memory() or 0) > 1_000_000)
        finally:
            link.kill()
            runtime.close()
