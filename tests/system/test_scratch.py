"""A folder that a killed process left goes with the next one of its kind; that of a living one
stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hocket.system.scratch import ScratchFolder

HOLD = """
import time
from hocket.system.scratch import ScratchFolder
folder = ScratchFolder("test")
print(folder.path, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_folder_is_there_until_it_is_closed() -> None:
    with ScratchFolder("test") as folder:
        (folder.path / "file").write_text("x")
    assert not folder.path.exists()
    folder.close()


def test_folder_of_a_killed_process_is_swept_and_that_of_a_living_one_is_not() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        assert holder.stdout is not None
        held = Path(holder.stdout.readline().strip())
        with ScratchFolder("test") as mine, ScratchFolder("test") as other:
            assert held.is_dir()
            assert mine.path.is_dir()
            assert mine.path != other.path
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert held.is_dir()
    with ScratchFolder("test"):
        assert not held.exists()


def test_what_a_process_was_killed_in_deleting_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    def be_killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    folder = ScratchFolder("test")
    (folder.path / "a").mkdir()
    fd = folder._fd
    assert fd is not None
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", be_killed)
        with pytest.raises(KeyboardInterrupt):
            folder.close()
    os.close(fd)  # As the end of the process does.
    with ScratchFolder("test"):
        assert not folder.path.exists()


def test_a_folder_that_never_had_its_lock_is_swept_once_it_is_old(temporary_files: Path) -> None:
    old, young = temporary_files / "hocket-test-old", temporary_files / "hocket-test-young"
    for folder in (old, young):
        folder.mkdir()
    os.utime(old, (0.0, 0.0))
    with ScratchFolder("test"):
        assert not old.exists()
        assert young.exists()


def test_what_is_not_ours_is_left_alone(temporary_files: Path) -> None:
    without_lock = temporary_files / "hocket-test-begun"
    other_kind = temporary_files / "hocket-other-x"
    for folder in (without_lock, other_kind):
        folder.mkdir()
    (other_kind / "lock").touch()
    ScratchFolder("test").close()
    assert without_lock.is_dir()
    assert other_kind.is_dir()
