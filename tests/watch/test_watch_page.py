"""The page in a real browser: it loads, follows, plays and keeps what one tells it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket.core.data import Outcome, Trial
from hocket.records.folder import RunFolder
from hocket.records.labels import load_labels
from hocket.records.ledger.ledger import Ledger
from hocket.workers.sinks.encoder import Quality, VideoFile
from support.chromium import BINARY, Browser, Page
from support.parts import needs
from support.processes import DEADLINE_S, wait_until
from support.recorded_runs import ERROR, FAILURE, SUCCESS, plan, play, record_run
from support.watched import served

pytestmark = [
    pytest.mark.slow,
    needs("chromium", is_there=BINARY is not None, how="apt-get install chromium"),
]

TRIALS = plan(["push", "a_task_with_quite_a_long_name_that_goes_on"], 8)
TESTS = Path(__file__).parents[1]


def mixed(trial: Trial) -> Outcome:
    return (SUCCESS, FAILURE, SUCCESS, ERROR)[trial.seed % 4]


@pytest.fixture(scope="module")
def filmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "filmed"
    hocket.evaluate(
        env="toy:image",
        policy="scripted",
        episodes=8,
        lanes=2,
        out=folder,
        video="all",
        env_config={"image_size": 64},
    )
    return folder


def quiet(page: Page) -> None:
    assert page.complaints == []


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_a_finished_run_is_shown_whole_and_quietly(
    chromium: Browser, filmed: Path, width: int, dark: bool
) -> None:
    with served(filmed) as address, chromium.page(width=width, dark=dark) as page:
        page.go(address)
        page.until("hocket.grid.painted > 0")
        assert page.ask("document.getElementById('phase').textContent") == "done"
        assert "n = 8" in page.ask("document.getElementById('rate-note').textContent")
        assert page.ask("document.documentElement.scrollWidth <= innerWidth")
        page.until("[...document.querySelectorAll('#feed video')].every((v) => v.readyState > 0)")
        paper = page.ask("getComputedStyle(document.body).backgroundColor")
        assert (int(paper.split("(")[1].split(",")[0]) < 128) == dark
        page.press("j")
        page.until("document.querySelector('#episode video')?.currentTime > 0.2")
        assert page.ask("document.querySelectorAll('.scrubber i').length") > 0
        assert page.ask("document.documentElement.scrollWidth <= innerWidth")
        quiet(page)


def test_what_ends_arrives_without_a_reload(chromium: Browser, tmp_path: Path) -> None:
    run = record_run(tmp_path / "run", TRIALS, mixed, ended=4)
    with served(run) as address, chromium.page() as page:
        page.go(address)
        page.until("hocket.grid.letter(3) === 'F'")
        assert page.ask("hocket.grid.letter(4)") == "."
        with Ledger.open(run) as ledger:
            play(ledger, TRIALS[4:8], mixed, 2)
        page.until("hocket.grid.letter(6) === 'E'")
        page.until("document.querySelectorAll('#feed .card').length === 4")
        assert "8 of 16" in page.ask("document.getElementById('ends').textContent")
        quiet(page)


def test_a_video_plays_while_it_grows_and_goes_on_when_it_is_sealed(
    chromium: Browser, tmp_path: Path
) -> None:
    run = record_run(tmp_path / "run", TRIALS, mixed, ended=4)
    path = RunFolder.at(run).attempt(TRIALS[5], 0) / "front.mp4"
    film = VideoFile(path, Fraction(20), Quality())
    over = threading.Event()

    def grow() -> None:
        while not over.wait(0.03):
            image = np.full((64, 64, 3), film.frames % 200, np.uint8)
            film.write(image)
        film.seal()

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        with served(run) as address, chromium.page() as page:
            page.go(address)
            page.until("hocket.grid.painted > 0")
            wait_until(lambda: film.frames > 40)
            page.ask("hocket.open(5)")
            video = "document.querySelector('#episode video')"
            page.until(f"{video}?.currentTime > 0.2")
            first = page.ask(f"{video}.buffered.end(0)")
            assert page.ask(f"{video}.src.startsWith('blob:')")
            page.until(f"{video}.buffered.end(0) > {first}")
            over.set()
            page.until(f"{video}.src.includes('/film/')")
            page.until(f"{video}.readyState > 1 && isFinite({video}.duration)")
            quiet(page)
    finally:
        over.set()
        thread.join(DEADLINE_S)


def test_one_key_labels_a_failure_and_the_label_sticks(chromium: Browser, tmp_path: Path) -> None:
    run = record_run(tmp_path / "run", TRIALS, mixed)
    with served(run) as address, chromium.page() as page:
        page.go(address)
        page.until("hocket.grid.painted > 0")
        page.press("j")
        page.until("hocket.player.shown?.outcome === 'F'")
        page.press("1")
        page.until("hocket.player.shown.label === 'dropped'")
        page.press("j")
        page.until("hocket.player.shown?.cell === 3")
        page.press("w")
        page.ask("document.querySelector('.labels input').value = 'fell <b>over</b>', 1")
        page.press("\r")
        page.until("Object.keys(hocket.state.labels).length === 2")
        page.go(address)
        page.until("!!document.querySelector('button.label[data-label=dropped]')")
        page.ask("document.querySelector('button.label[data-label=dropped]').click()")
        hidden = "[...Array(16).keys()].filter((cell) => !hocket.grid.isHidden(cell))"
        assert page.ask(hidden) == [2]
        quiet(page)
    assert load_labels(run) == {TRIALS[2].id: "dropped", TRIALS[3].id: "fell <b>over</b>"}


def test_a_folder_lists_runs_and_a_run_is_compared_with_the_one_before(
    chromium: Browser, tmp_path: Path
) -> None:
    record_run(tmp_path / "runs" / "before", TRIALS, lambda _: FAILURE)
    record_run(tmp_path / "runs" / "now", TRIALS, mixed)
    with served(tmp_path / "runs") as address, chromium.page() as page:
        page.go(address)
        page.until("document.querySelectorAll('#run-list a').length === 2")
        page.ask("document.querySelector('#run-list a[href$=now]').click()")
        page.until("window.hocket && hocket.grid.painted > 0")
        twin = page.until("document.getElementById('twin').textContent")
        assert twin.startswith("against before on 12 trials that both ended: +66.7 points [")
        quiet(page)


def test_training_is_shown_as_curves_with_its_evaluations(
    chromium: Browser, tmp_path: Path
) -> None:
    run = tmp_path / "train"
    run.mkdir()
    (run / "run.yaml").write_text("env: [toy]\npolicy: actor\nsteps: 4000\nabout: {format: 4}\n")
    rows = []
    for step in range(100, 2100, 100):
        values = {"train/success": step / 4000, "train/return": step / 10, "learn/kl": 0.01}
        values |= {"learn/staleness": 1.5, "time/collecting": 0.9, "count/updates": step / 100}
        rows.append({"env_steps": step, "wall_s": step / 50, "kind": "update", **values})
    interval = {"eval/success": 0.5, "eval/success_low": 0.3, "eval/success_high": 0.7}
    rows.append({"env_steps": 2000, "wall_s": 41.0, "kind": "eval", "n": 20, **interval})
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with served(run) as address, chromium.page() as page:
        page.go(address)
        page.until("document.querySelectorAll('.curve').length >= 4")
        assert "2,000 of 4,000 steps" in page.ask("document.getElementById('ends').textContent")
        told = page.ask("document.querySelector('.curve h3 span').textContent")
        assert told == "evaluated 50.0 % [30, 70], n = 20"
        with open(run / "metrics.jsonl", "a") as file:
            file.write(json.dumps({**rows[-2], "env_steps": 2100}) + "\n")
        page.until("document.getElementById('ends').textContent.includes('2,100')")
        quiet(page)


def test_a_run_with_watch_shows_its_lanes_and_takes_its_page_along(
    chromium: Browser, tmp_path: Path
) -> None:
    names = "--env toy:image --policy scripted --policy.cameras observation/image --lanes 2"
    names += " --env.step-s 0.02 --env.length-min 200 --env.length-max 300 --episodes 200"
    command = [sys.executable, "-m", "hocket", "eval", *names.split(), "--video", "none"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "run"), "--watch"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    with process, chromium.page() as page:
        try:
            assert process.stderr is not None
            page.go(next(line for line in process.stderr if "http" in line).split()[-1])
            page.until("hocket.state.pictures > 2")
            page.until("document.querySelectorAll('#lane-list tr').length === 2")
            assert page.ask("document.querySelector('#pictures img').naturalWidth") == 240
            page.until("hocket.state.head.speed?.steps_per_s > 0")
            page.until("hocket.grid.running.size > 0")
            quiet(page)
        finally:
            process.kill()
        # The page's server has gone with the run, however that ended.
        page.until("document.getElementById('alerts').textContent.includes('not answer')")
