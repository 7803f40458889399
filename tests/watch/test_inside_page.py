"""Inside an episode and between runs, in a real browser: by keyboard, from disk and live."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_front_page import reported

import hocket
from hocket.core.data import Trial
from hocket.results.comparing.compare import compare_runs
from hocket.results.comparing.side import Side
from hocket.results.page.compare_page import write_compare_page
from hocket.results.page.report_page import write_bundle, write_report_page
from support.axe import fetch_axe, serious_faults
from support.chromium import BINARY, Browser, Page
from support.parts import needs
from support.recorded_runs import FAILURE, SUCCESS, plan
from support.watched import served

pytestmark = [
    pytest.mark.slow,
    needs("chromium", is_there=BINARY is not None, how="apt-get install chromium"),
]
STEP, NOW = "hocket.player.step", "document.querySelector('#episode .now').textContent"
TURN, BROKEN = 5, 3
"""The steps of a chunk that are executed, and the seed whose attempts raise."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two filmed runs of the same trials, of which one raises at each attempt."""
    home = tmp_path_factory.mktemp("inside") / "runs"
    for name, replan in (("one", TURN), ("two", 2 * TURN)):
        hocket.evaluate(
            env="support.filmed_env:Walk",
            policy="scripted",
            episodes=6,
            lanes=2,
            replan=replan,
            retries=1,
            out=home / name,
            video="all",
            env_config={"raise_seed": BROKEN},
        )
        write_report_page(home / name)
    return home


@pytest.fixture(params=["live", "disk", "bundle"])
def page(
    request: pytest.FixtureRequest, chromium: Browser, root: Path, tmp_path: Path
) -> Iterator[Page]:
    """The page of a run in each of its three settings, with its address as `home`."""
    run = root / "one"
    if request.param == "live":
        with served(run) as address, chromium.page() as page:
            yield at(page, address)
    else:
        file = run / "report.html"
        if request.param == "bundle":
            file = Path(shutil.copy(write_bundle(run, 20.0), tmp_path / "mailed.html"))
        with chromium.page() as page:
            yield at(page, file.as_uri())


def at(page: Page, address: str) -> Page:
    page.home = address  # type: ignore[attr-defined]
    return page


def opened(page: Page, link: str) -> None:
    page.go("about:blank")
    page.go(f"{page.home}{link}")  # type: ignore[attr-defined]
    page.until("window.hocket && hocket.player.look && hocket.player.isFilmed")


def test_a_link_opens_an_episode_at_a_second_and_keys_step_through_it(page: Page) -> None:
    opened(page, "#e1@0.5")
    page.until(f"{STEP} === 10")
    assert "decision 2 of 8" in page.ask(f"hocket.player.seek(9), {NOW}")
    page.press("ArrowRight")
    assert page.ask(STEP) == 10
    page.press(".")
    assert page.ask(STEP) == 15
    page.press(",")
    assert page.ask(STEP) == 10
    assert page.ask("location.hash") == "#e1@0.5"
    page.until("Math.abs(hocket.player.video.currentTime - 0.525) < 0.01")
    page.until("document.querySelector('.seen').textContent.includes('at step 10: from the film')")
    slider = "document.querySelector('.scrubber').getAttribute('aria-valuetext')"
    assert page.ask(slider).startswith("step 10 of 40")
    drawn = page.ask(
        "[...document.querySelectorAll('.track canvas')].every((one) => {"
        " const pen = one.getContext('2d');"
        " return pen.getImageData(0, 0, one.width, one.height).data.some((value) => value); })"
    )
    assert drawn
    names = page.ask("[...document.querySelectorAll('.track > span')].map((s) => s.title)")
    assert {"decisions", "time to the answer", "reward", "action[0]", "state"} <= {*names}
    assert page.complaints == []


def test_a_lost_attempt_shows_its_last_seconds_and_the_users_own_line(page: Page) -> None:
    opened(page, f"#e{BROKEN}a1")
    own = "document.querySelector('#episode .own').textContent"
    assert "filmed_env.py, line" in page.ask(own)
    tries = "[...document.querySelectorAll('#episode button[aria-pressed]')].map((b) => "
    told = page.ask(f"{tries} b.textContent).filter((t) => t.startsWith('attempt'))")
    assert told == ["attempt 1, lost", "attempt 2, error"]
    page.until(f"{STEP} > 5")
    page.ask("[...document.querySelectorAll('#episode button')].find("
             "(b) => b.textContent === 'attempt 2, error').click()")  # fmt: skip
    page.until("hocket.player.shown.attempt === 1 && hocket.player.look")
    assert page.complaints == []


def test_the_same_errors_of_a_run_that_has_ended_are_live_as_in_its_report(page: Page) -> None:
    opened(page, "#e0@0")
    page.ask("hocket.player.close()")
    page.until("!document.getElementById('errors').hidden")
    page.until("!!document.querySelector('#length-chart svg')")
    fault = "document.querySelector('#errors summary').textContent"
    assert "The dot fell." in page.ask(fault)
    assert page.ask("document.querySelectorAll('#errors .card').length") == 2
    page.ask("document.querySelector('#errors .card').click()")
    page.until("hocket.player.shown && hocket.player.shown.error")
    assert page.complaints == []


def test_two_episodes_of_a_pair_go_in_step_and_the_first_difference_is_marked(
    chromium: Browser, root: Path
) -> None:
    found = compare_runs(Side.open(root / "one"), Side.open(root / "two"))
    with chromium.page() as page:
        page.open(write_compare_page(found, root / "compare.html"))
        page.ask("document.querySelector('a.step').click()")
        page.until("hocket.player.look && hocket.player.isFilmed")
        page.ask("hocket.player.seek(7)")
        times = "hocket.player.cameras.flat().map(({ video }) => video.currentTime)"
        page.until(f"{times}.every((at) => Math.abs(at - 0.375) < 0.01)")
        assert len(page.ask(times)) == 2
        assert page.ask("hocket.player.tracks.split") == TURN
        legend = page.ask("document.querySelector('.tracks .legend').textContent")
        assert f"the first decision that differs, at step {TURN}" in legend
        assert page.complaints == []


def choose(trial: Trial) -> Any:
    return SUCCESS if trial.seed % 2 else FAILURE


def test_the_front_page_sorts_filters_groups_pins_and_compares(
    chromium: Browser, tmp_path: Path
) -> None:
    for step in (1000, 2000, 3000):
        reported(tmp_path / f"act-{step}", policy=f"out/act/{step}", replan=4)
        reported(tmp_path / f"pi0-{step}", choose, policy=f"out/pi0/{step}", replan=8)
    names = "[...document.querySelectorAll('#run-list td a')].map((a) => a.textContent)"
    change = "((id, value) => { const one = document.getElementById(id); one.value = value;"
    change += " one.dispatchEvent(new Event(id === 'run-find' ? 'input' : 'change')); })"
    with served(tmp_path) as address, chromium.page(width=1600) as page:
        page.go(address)
        page.until(f"{names}.length === 6")
        page.ask("document.querySelector('[data-sort=run]').click()")
        page.until(f"{names}[0] === 'act-1000' && {names}[5] === 'pi0-3000'")
        page.ask(f"{change}('run-find', 'replan=8 out')")
        page.until(f"{names}.length === 3 && {names}.every((name) => name.startsWith('pi0'))")
        page.ask(f"{change}('run-find', '')")
        page.ask(f"{change}('run-over', 'training step')")
        page.until("document.querySelectorAll('#run-chart circle').length === 6")
        assert page.ask("document.querySelectorAll('#run-chart .sweep').length") == 2
        page.ask(f"{change}('run-group', 'replan')")
        page.until("document.querySelectorAll('#run-list tr.group').length === 2")
        page.ask("document.querySelector('.pin').click()")
        page.until("document.getElementById('run-list').textContent.includes('baseline')")
        page.until("[...document.querySelectorAll('#run-list td')].some((td) =>"
                   " /^[^ ]?[0-9.]+ \\[.*n=12$/.test(td.textContent))")  # fmt: skip
        page.ask("[0, 5].map((i) => document.querySelectorAll('.pick input')[i].click())")
        page.until("!document.getElementById('run-compare').disabled")
        page.ask("document.getElementById('run-compare').click()")
        page.until("!document.getElementById('compared').hidden")
        assert "n = 12 pairs" in page.ask("document.getElementById('compared').textContent")
        assert page.complaints == []


def test_the_grid_is_walked_and_an_episode_opened_by_keyboard(page: Page) -> None:
    page.go(f"{page.home}")  # type: ignore[attr-defined]
    page.until("window.hocket && hocket.grid.painted > 0")
    page.ask("document.getElementById('grid-frame').focus()")
    for key in ("ArrowRight", "ArrowRight"):
        page.press(key)
    page.until("document.getElementById('grid-told').textContent.includes('seed 1')")
    page.press("Enter")
    page.until("hocket.player.shown?.cell === 1 && document.activeElement.role === 'slider'")
    page.ask("hocket.player.close()")
    assert page.complaints == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1600, 400])
def test_axe_finds_no_serious_fault(
    chromium: Browser,
    root: Path,
    tmp_path_factory: pytest.TempPathFactory,
    width: int,
    dark: bool,
) -> None:
    axe = fetch_axe(tmp_path_factory.mktemp("axe"))
    found = compare_runs(Side.open(root / "one"), Side.open(root / "two"))
    compared = write_compare_page(found, root / "compare.html").as_uri()
    report = (root / "one" / "report.html").as_uri()
    with served(root) as address, chromium.page(width=width, dark=dark) as page:
        for link, is_ready in (
            (address, "document.querySelectorAll('#run-list td a').length === 2"),
            (f"{address}run/one", "!document.getElementById('episodes').hidden"),
            (report, "hocket.grid.painted > 0"),
            (f"{report}#e{BROKEN}", "hocket.player.look"),
            (compared, "hocket.grid.painted > 0"),
        ):
            page.go("about:blank")
            page.go(link)
            page.until(f"window.hocket && {is_ready}")
            assert serious_faults(page, axe) == [], link
            assert page.ask("document.documentElement.scrollWidth <= innerWidth"), link
        assert page.complaints == []


def test_chips_say_what_they_leave(chromium: Browser, tmp_path: Path) -> None:
    run = reported(tmp_path / "run")
    assert len(plan(["push", "reach"], 8)) == 16
    with chromium.page() as page:
        page.open(write_report_page(run))
        only = "document.querySelector('#outcomes .only').textContent"
        chip = "document.querySelector('#outcomes button[data-filter={}]')"
        page.until(f"!!{chip.format('error')}")
        assert page.ask(only) == ""
        page.ask(f"{chip.format('error')}.click()")
        page.until(f"{only} === 'only errors: 4 of 16'")
        assert page.ask(f"{chip.format('error')}.getAttribute('aria-pressed')") == "true"
        page.ask(f"{chip.format('error')}.click()")
        page.until(f"{only} === ''")
        assert page.complaints == []
