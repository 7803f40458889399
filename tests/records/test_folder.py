"""One process owns a run folder, and a file in it is whole or absent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.core.data import Trial
from hocket.errors import RunFolderError
from hocket.records.folder import RunFolder
from hocket.system.durable import temporary, write_atomic

HOLD = """
import sys
from hocket.records.folder import RunFolder
lock = RunFolder.at(sys.argv[1]).lock()
print("held", flush=True)
sys.stdin.read()
"""


def hold(root: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait(timeout=100)
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        pipe.close()


def test_second_process_is_refused_by_the_pid_of_the_first(tmp_path: Path) -> None:
    child = hold(tmp_path)
    try:
        with pytest.raises(RunFolderError, match=f"in use by process {child.pid} on "):
            RunFolder.at(tmp_path).lock()
    finally:
        end(child)


def test_lock_dies_with_a_killed_process(tmp_path: Path) -> None:
    end(hold(tmp_path))
    RunFolder.at(tmp_path).lock().release()


def test_second_lock_in_the_same_process_is_refused(tmp_path: Path) -> None:
    folder = RunFolder.at(tmp_path)
    with folder.lock(), pytest.raises(RunFolderError, match=f"process {os.getpid()}"):
        folder.lock()
    folder.lock().release()


@pytest.mark.filterwarnings("ignore:os.fork\\(\\) was called:RuntimeWarning")  # by JAX, if loaded
def test_forked_child_does_not_keep_the_lock_of_its_parent(tmp_path: Path) -> None:
    folder = RunFolder.at(tmp_path)
    lock = folder.lock()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_end, b"x")
        signal.pause()
        os._exit(0)
    try:
        os.read(read_end, 1)
        lock.release()
        folder.lock().release()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read_end)
        os.close(write_end)


def test_releasing_a_lock_twice_is_safe(tmp_path: Path) -> None:
    lock = RunFolder.at(tmp_path).lock()
    lock.release()
    lock.release()


def test_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        RunFolder.at(tmp_path / "file" / "run").lock()


def test_written_file_replaces_the_old_one_and_leaves_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_atomic(path, b"old")
    write_atomic(path, memoryview(b"new"))
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["report.json"]


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_atomic(path, b"old")
    temporary(path).mkdir()
    with pytest.raises(RunFolderError):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"


def test_layout_names_an_attempt_by_trial_and_number(tmp_path: Path) -> None:
    trial = Trial(suite="toy:reach", task="reach", seed=3, repeat=1)
    folder = RunFolder.at(str(tmp_path))
    assert folder.attempt(trial, 2) == tmp_path / "episodes" / "toy-reach-reach-3.1" / "2"
    assert RunFolder.at(folder) is folder
