"""A disk that takes no more stops the run with its ledger intact."""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket.core.data import Episode, Trial
from hocket.core.events import Event
from hocket.errors import RunFolderError
from hocket.records.ledger.ledger import Ledger
from hocket.records.ledger.view import LedgerView
from hocket.system.durable import disk_error
from support.counted import check_counted
from support.synthetic_run import (
    ENDED,
    QUICK,
    SyntheticRun,
    began,
    episode_of,
    open_run,
    plan,
    sealed,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], timeout=100, check=True)


def resize(place: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], timeout=100, check=True)


def finish(ledger: Ledger, trials: list[Trial]) -> None:
    for trial in trials:
        ledger.on(began(trial))
        ledger.on(sealed(episode_of(trial, 0, ["episodes/" + "x" * 2000])))
        if trial.seed % 16 == 0:
            ledger.flush()


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

    resize(small_disk, "64m")
    with Ledger.open(root) as again:
        left = again.remaining()
        assert len(left) == len(trials) - counted
        numbers = again.next_attempts()
        for trial in left[:5]:
            attempt = numbers.get(trial.id, 0)
            again.on(began(trial, attempt=attempt))
            again.on(sealed(episode_of(trial, attempt)))
        again.on(ENDED)
        assert len(again.episodes()) == counted + 5


@pytest.mark.parametrize("size_kib", [320, 640, 1200])
def test_run_with_all_its_tables_survives_a_full_disk(small_disk: Path, size_kib: int) -> None:
    root = small_disk / "run"
    resize(small_disk, f"{size_kib}k")
    trials = plan(400)
    ledger = open_run(root, resume=False, trials=trials)
    run = SyntheticRun(ledger.folder, random.Random(size_kib), ledger.on)
    with pytest.raises(RunFolderError, match="No space is left"):
        run.play(trials, {})
    with contextlib.suppress(RunFolderError):
        ledger.close()
    before = check_counted(root)
    assert len(before) < len(trials)

    resize(small_disk, "64m")
    with open_run(root, resume=True) as again:
        again.sweep()
        run = SyntheticRun(again.folder, random.Random(0), again.on)
        run.play(again.remaining(), again.next_attempts())
    after = check_counted(root)
    assert set(after) == set(trials)
    assert before.items() <= after.items()


class BrokenRows:
    """A recorder whose disk fills up while it writes."""

    table = "chunks"
    consumes: str | None = None

    def __init__(self) -> None:
        self.wrote = threading.Event()

    def on(self, event: Event) -> None: ...

    def take(self, episode: Episode) -> int:
        return 1

    def forget(self, trial: Trial, attempt: int) -> None: ...

    def write(self, path: Path, taken: Any) -> int:
        self.wrote.set()
        raise disk_error(OSError(28, "No space left on device"), path)


def test_episode_whose_rows_cannot_be_written_does_not_count(root: Path) -> None:
    ledger = Ledger.create(root, plan(2), {}, config=QUICK)
    broken = BrokenRows()
    ledger.attach(broken)
    ledger.on(began(*plan(2)))
    ledger.on(sealed(episode_of(plan(1)[0], 0)))
    assert broken.wrote.wait(timeout=100)
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
