"""A disk that takes no more stops the run with its ledger intact."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket.data import Episode, Trial
from hocket.errors import RunFolderError
from hocket.events import Event
from hocket.folder import disk_error
from hocket.ledger import Ledger, LedgerView
from synthetic_run import ENDED, QUICK, began, episode_of, plan, sealed


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


# -- a disk that takes no more -------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], timeout=20, check=True)


def finish(ledger: Ledger, trials: list[Trial]) -> None:
    for trial in trials:
        ledger.on(began(trial))
        ledger.on(sealed(episode_of(trial, 0, ["episodes/" + "x" * 2000])))


def test_full_disk_stops_the_run_with_the_ledger_intact(small_disk: Path) -> None:
    root = small_disk / "run"
    trials = plan(3000)
    ledger = Ledger.create(root, trials, {}, config=QUICK)
    with pytest.raises(RunFolderError, match=r"No space is left .* `hocket resume`"):
        finish(ledger, trials)
    with contextlib.suppress(RunFolderError):  # it may have failed in its thread, or not
        ledger.close()
    with LedgerView.open(root) as view:
        counted = len(view.episodes())
    assert 0 < counted < len(trials)

    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], timeout=20, check=True)
    with Ledger.open(root) as again:
        left = again.remaining()
        assert len(left) == len(trials) - counted
        numbers = again.next_attempts(left)
        for trial in left[:5]:
            again.on(began(trial, attempt=numbers[trial.id]))
            again.on(sealed(episode_of(trial, numbers[trial.id])))
        again.on(ENDED)
        assert len(again.episodes()) == counted + 5


class BrokenRows:
    """A recorder whose disk fills up while it writes."""

    table = "chunks"
    consumes: str | None = None

    def __init__(self) -> None:
        self.wrote = threading.Event()

    def on(self, event: Event) -> None: ...

    def take(self, episode: Episode) -> int:
        return 1

    def write(self, path: Path, taken: Any) -> int:
        self.wrote.set()
        raise disk_error(OSError(28, "No space left on device"), path)

    def merge(self, path: Path, sources: Any) -> int:
        raise AssertionError


def test_episode_whose_rows_cannot_be_written_does_not_count(root: Path) -> None:
    ledger = Ledger.create(root, plan(2), {}, config=QUICK)
    broken = BrokenRows()
    ledger.attach(broken)
    ledger.on(began(*plan(2)))
    ledger.on(sealed(episode_of(plan(1)[0], 0)))
    assert broken.wrote.wait(timeout=20)
    with pytest.raises(RunFolderError, match="No space is left"):
        ledger.on(ENDED)
    with pytest.raises(RunFolderError, match="No space is left"):
        ledger.behind()
    with pytest.raises(RunFolderError, match="No space is left"):
        ledger.close()
    with Ledger.open(root) as again:
        assert again.remaining() == plan(2)


def test_unwritable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        Ledger.create(tmp_path / "file", plan(1), {})
