"""An attempt that ends in an error leaves what it recorded up to then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

import hocket
from hocket.core.data import Outcome, Trial
from hocket.records.evidence import KILLED, Evidence, kept_evidence
from hocket.records.folder import RunFolder
from hocket.records.ledger.view import LedgerView
from hocket.results.report import Report
from hocket.workers.sinks.spill import SPILL_S
from hocket.workers.sinks.states import FILE as STATES
from hocket.workers.sinks.states import load_states
from hocket.workers.sinks.steps import load_error_steps
from support.chromium import BINARY, browser
from support.parts import needs
from support.processes import DEADLINE_S, wait_until
from support.row_toys import RowToys


def evaluate(folder: Path, env: str, toy: dict[str, Any], **settings: Any) -> Report:
    settings = {"episodes": 2, "lanes": 2, "retries": 0, "video": "all", **settings}
    toy = {"length_min": 50, **toy}
    return hocket.evaluate(env=env, policy="random", out=folder, env_config=toy, **settings)


def evidence(folder: Path) -> list[Evidence]:
    with LedgerView.open(folder) as ledger:
        return kept_evidence(ledger)


def frames(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


@pytest.mark.parametrize(("env", "states"), [("toy:pixels", 0), ("toy:image", 31)])
def test_a_crash_at_step_30_leaves_a_film_of_30_steps(
    tmp_path: Path, env: str, states: int
) -> None:
    root = tmp_path / "run"
    report = evaluate(root, env, {"raise_at": 31, "fault_seed": 1})
    assert report.overall.errors == 1
    assert report.overall.n == 1, "what is kept of an error is in no statistic"
    (kept,) = evidence(root)
    assert (kept.trial.seed, kept.attempt) == (1, 0)
    assert "This toy broke at step 31" in kept.error
    place = RunFolder.at(root).attempt(kept.trial, 0)
    assert frames(place / "image.mp4") == 31, "the reset, and each step"
    steps = load_error_steps(place / "steps.npz")
    assert list(steps["step"]) == list(range(31))
    assert (len(load_states(place / STATES)) if states else 0) == states
    (entry,) = Report.load(root).kept_errors
    assert entry["folder"] == f"episodes/{kept.trial.slug}/0"
    page = (root / "report.html").read_text()
    assert f"{kept.trial.slug}/0/image.mp4" in page
    assert f"{kept.trial.slug}/0/steps.npz" in page
    assert hocket.resume(root).overall == report.overall
    assert evidence(root) == [kept], "resuming keeps it"


def test_a_worker_that_dies_leaves_all_but_its_last_moments(tmp_path: Path) -> None:
    root = tmp_path / "run"
    toy = {"exit_at": 31, "fault_seed": 1, "step_s": 2 * SPILL_S}
    report = evaluate(root, "toy:image", toy)
    assert report.overall.errors == 1
    (kept,) = evidence(root)
    place = RunFolder.at(root).attempt(kept.trial, 0)
    steps = load_error_steps(place / "steps.npz")
    assert 25 <= len(steps) <= 31
    assert steps["action"].shape[1] == 4
    assert len(load_states(place / STATES)) == len(steps)
    assert frames(place / "image.mp4") == len(steps)


@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_a_batched_simulator_that_raises_leaves_what_its_rows_recorded(
    tmp_path: Path, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowToys, "made", [])
    root = tmp_path / "run"
    toy = {"raise_at": 8, "length_min": 50, "length_max": 60}
    report = hocket.evaluate(
        env="support.row_toys:RowToys",
        env_config=toy,
        policy="random",
        out=root,
        episodes=2,
        lanes=4,
        runtime=runtime,
        retries=0,
    )
    assert report.overall.errors == 4
    kept = evidence(root)
    assert [each.attempt for each in kept] == [0] * 4
    steps: list[int] = []
    for each in kept:
        assert "This toy was told to raise" in each.error
        place = RunFolder.at(root).attempt(each.trial, 0)
        if not (place / "steps.npz").exists():  # its first chunk had not come
            continue
        steps.append(len(load_states(place / STATES)))
        assert list(load_error_steps(place / "steps.npz")["step"]) == list(range(steps[-1]))
    # The simulator takes eight steps. A row whose chunk comes late takes fewer of them.
    assert sum(steps) == 4 * 8 if runtime == "inline" else sum(steps) >= 8
    assert all(taken <= 8 for taken in steps)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["raise_at", "exit_at", "hang_at"])
def test_workers_elsewhere_send_what_a_lost_attempt_left(tmp_path: Path, fault: str) -> None:
    root = tmp_path / "run"
    toy = {fault: 31, "fault_seed": 1, "step_s": 0.0 if fault == "raise_at" else 2 * SPILL_S}
    report = evaluate(root, "toy:pixels", toy, runtime="loopback", step_timeout_s=5.0)
    assert report.overall.errors == 1
    (kept,) = evidence(root)
    place = RunFolder.at(root).attempt(kept.trial, 0)
    assert not any(path.name.startswith(".") for path in place.iterdir())
    steps = len(load_error_steps(place / "steps.npz"))
    assert 25 <= steps <= 31
    if fault == "raise_at":
        assert steps == frames(place / "image.mp4") == 31


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["raise_at", "exit_at"])
def test_sites_send_what_a_lost_attempt_left(tmp_path: Path, fault: str) -> None:
    root = tmp_path / "run"
    arguments = "eval --env toy:image --policy random --episodes 2 --retries 0 --video all"
    arguments += f" --env.length-min 50 --env.{fault.replace('_', '-')} 31 --env.fault-seed 1"
    arguments += f" --env.step-s {2 * SPILL_S} --machines local:2"
    command = [sys.executable, "-m", "hocket", *arguments.split(), "--out", str(root)]
    subprocess.run(command, check=False, capture_output=True, timeout=DEADLINE_S)
    # A site where nothing has ended yet may be broken itself: the other one tries too.
    found = evidence(root)
    assert 1 <= len(found) <= 2
    assert len({kept.trial for kept in found}) == 1
    for kept in found:
        place = RunFolder.at(root).attempt(kept.trial, kept.attempt)
        assert 25 <= len(load_error_steps(place / "steps.npz")) <= 31
        assert f"{kept.trial.slug}/{kept.attempt}/steps.npz" in (root / "report.html").read_text()


def test_so_many_errors_are_kept_and_no_more(tmp_path: Path) -> None:
    report = evaluate(
        tmp_path / "run", "toy:pixels", {"raise_at": 3}, episodes=6, keep_errors=2, lanes=1
    )
    assert report.overall.errors == 6
    assert len(evidence(tmp_path / "run")) == 2
    assert len(list((tmp_path / "run").rglob("*.mp4"))) == 2
    evaluate(tmp_path / "none", "toy:pixels", {"raise_at": 3}, keep_errors=0, lanes=1)
    assert list((tmp_path / "none").rglob("*.npz")) == []


def test_a_lost_attempt_is_kept_beside_the_one_that_counts(tmp_path: Path) -> None:
    toy = {"raise_at": 31, "once_file": str(tmp_path / "once")}
    report = evaluate(tmp_path / "run", "toy:image", toy, retries=2, episodes=1)
    (episode,) = report.episodes
    assert (episode.attempt, episode.outcome is Outcome.ERROR) == (1, False)
    (kept,) = evidence(tmp_path / "run")
    assert kept.attempt == 0
    root = RunFolder.at(tmp_path / "run")
    assert frames(root.attempt(episode.trial, 0) / "image.mp4") == 31
    assert frames(root.attempt(episode.trial, 1) / "image.mp4") == episode.steps + 1


def test_resuming_finishes_what_a_killed_run_left_and_deletes_what_cannot_be_read(
    tmp_path: Path,
) -> None:
    root = tmp_path / "run"
    report = evaluate(root, "toy:count", {}, video="none", lanes=1)
    trial = Trial(suite="toy:count", task="count", seed=0)
    place = RunFolder.at(root).attempt(trial, 7)
    place.mkdir(parents=True)
    with open(place / f".{STATES}.spill.tmp", "wb") as file:
        np.save(file, np.arange(6.0).reshape(3, 2))
        np.save(file, np.ones((2, 2)))
        file.write(b"\x93NUMPY cut")
    (place / ".image.mp4.tmp").write_bytes(b"\0" * 50)
    (place / "image.mp4").write_bytes(b"\0" * 50)
    unreadable = RunFolder.at(root).attempt(trial, 8)
    unreadable.mkdir()
    (unreadable / ".steps.npz.spill.tmp").write_bytes(b"cut")
    assert hocket.resume(root).overall == report.overall
    assert [path.name for path in place.iterdir()] == [STATES]
    assert load_states(place / STATES).tolist() == [[0, 1], [2, 3], [4, 5], [1, 1], [1, 1]]
    assert not unreadable.exists()
    (kept,) = evidence(root)
    assert (kept.attempt, kept.error) == (7, KILLED)


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_its_attempts(tmp_path: Path) -> None:
    root = tmp_path / "run"
    arguments = "eval --env toy:pixels --policy random --episodes 2 --lanes 2 --video all"
    arguments += " --env.step-s 0.05 --env.length-min 2000 --env.length-max 2000"
    command = [sys.executable, "-m", "hocket", *arguments.split(), "--out", str(root)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: any(p.stat().st_size > 20_000 for p in root.rglob(".image.mp4.tmp")))
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    hocket.runs.run.Run.open(root).close()
    kept = evidence(root)
    assert kept
    assert all(each.error == KILLED for each in kept)
    for each in kept:
        place = RunFolder.at(root).attempt(each.trial, each.attempt)
        assert frames(place / "image.mp4") > 5
        assert len(load_error_steps(place / "steps.npz")) > 5


@pytest.mark.slow
@needs("chromium", is_there=BINARY is not None, how="apt-get install chromium")
def test_a_browser_plays_the_film_of_a_crash(tmp_path: Path) -> None:
    evaluate(tmp_path / "run", "toy:image", {"raise_at": 31, "fault_seed": 1})
    with browser(tmp_path / "profile") as chromium, chromium.page() as page:
        page.open(tmp_path / "run" / "report.html")
        played = page.ask(
            """(async () => {
                const film = document.querySelector('#errors video');
                film.muted = true; film.playbackRate = 4;
                const ended = new Promise(done => film.addEventListener('ended', done));
                await film.play(); await ended;
                return [film.duration, film.currentTime, film.error && film.error.code];
            })()"""
        )
        assert page.complaints == []
    duration, at, error = played
    assert error is None
    assert duration == pytest.approx(31 / 20, abs=0.02)
    assert at == pytest.approx(duration, abs=0.02)
