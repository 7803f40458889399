"""The pages in a real browser: drawn, quiet, and content with what lies beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

import hocket
from hocket.core.data import Outcome, Trial
from hocket.results.comparing.compare import compare_runs
from hocket.results.comparing.side import Side
from hocket.results.page.compare_page import write_compare_page
from hocket.results.page.report_page import write_report_page
from support.chromium import BINARY, Browser, Page
from support.parts import needs
from support.recorded_runs import ERROR, FAILURE, SUCCESS, plan, record_run

pytestmark = [
    pytest.mark.heavy,
    needs("chromium", is_there=BINARY is not None, how="apt-get install chromium"),
]

SIZES = pytest.mark.parametrize(
    ("width", "dark"),
    [
        (1280, False),
        pytest.param(1280, True, marks=pytest.mark.slow),
        pytest.param(420, False, marks=pytest.mark.slow),
        (420, True),
    ],
)
DRAWN = """
(() => [...document.querySelectorAll("svg")].every((svg) => {
  const box = svg.getBoundingClientRect();
  const marks = [...svg.querySelectorAll("path, rect, circle, line")];
  return box.width > 100 && box.height > 10 && marks.some((mark) => {
    const drawn = mark.getBoundingClientRect();
    return drawn.width > 0 || drawn.height > 0;
  });
}) && document.querySelectorAll("svg").length)()
"""
PLAYED = """
(async () => {
  const video = document.querySelector(".card video");
  if (video.controls || video.readyState) return "not still";
  video.click();
  await new Promise((done, failed) => {
    video.addEventListener("timeupdate", () => video.currentTime > 0 && done());
    video.addEventListener("error", () => failed(video.error.message));
  });
  return [video.videoWidth, video.controls];
})()
"""


@pytest.fixture(scope="module")
def filmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "filmed"
    hocket.evaluate(
        env="toy:image",
        policy="scripted",
        episodes=4,
        lanes=2,
        out=folder,
        video="all",
        env_config={"image_size": 64},
    )
    return write_report_page(folder)


def mixed(trial: Trial) -> Outcome:
    return (SUCCESS, FAILURE, SUCCESS, ERROR)[(trial.seed + len(trial.task)) % 4]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("compared")
    trials = plan(["push", "reach", "a_task_with_quite_a_long_name_" * 3], 12)
    a = record_run(root / "a", trials, lambda _: SUCCESS)
    b = record_run(root / "b", trials, mixed)
    write_report_page(b)
    return write_compare_page(compare_runs(Side.open(a), Side.open(b)), root / "compare.html")


def check(page: Page, file: Path) -> None:
    """A page that is drawn, fits its width, says nothing and fetches nothing."""
    page.open(file)
    assert page.ask(DRAWN) > 3
    assert page.ask("document.documentElement.scrollWidth <= innerWidth")
    assert [url for url in page.requests if not url.startswith("data:")] == [file.as_uri()]
    assert page.complaints == []


@SIZES
def test_report_is_drawn_at_every_size_and_fetches_nothing(
    chromium: Browser, filmed: Path, width: int, dark: bool
) -> None:
    with chromium.page(width=width, dark=dark) as page:
        check(page, filmed)
        lightness = page.ask("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
        assert (int(lightness) < 60) == dark


@SIZES
def test_comparison_is_drawn_at_every_size_and_fetches_nothing(
    chromium: Browser, compared: Path, width: int, dark: bool
) -> None:
    with chromium.page(width=width, dark=dark) as page:
        check(page, compared)


def test_videos_play_when_they_are_asked_to_and_not_before(chromium: Browser, filmed: Path) -> None:
    with chromium.page() as page:
        page.open(filmed)
        assert not [url for url in page.requests if url.endswith(".mp4")]
        assert page.ask(PLAYED) == [64, True]
        fetched = [url for url in page.requests if not url.startswith("data:")]
        assert all(url.startswith(filmed.parent.as_uri()) for url in fetched)
        assert page.complaints == []


def test_link_to_a_video_opens_it_in_place(chromium: Browser, filmed: Path) -> None:
    with chromium.page() as page:
        page.open(filmed)
        page.ask("document.querySelector('a.film').click()")
        assert page.ask("document.querySelector('dialog').open")
        assert page.ask("document.querySelector('dialog video').src").endswith(".mp4")
        assert page.complaints == []


def test_filters_hide_episodes_and_a_cell_brings_its_episode_back(
    chromium: Browser, compared: Path
) -> None:
    shown = "[...document.querySelectorAll('#episodes-table tbody tr')].filter(r => !r.hidden)"
    with chromium.page() as page:
        page.open(compared.parent / "b" / "report.html")
        assert page.ask(f"{shown}.length") == 36
        page.ask("document.querySelector('button[data-filter=success]').click()")
        assert page.ask(f"new Set({shown}.map(r => r.dataset.outcome)).has('success')") is False
        page.ask(
            "const box = document.getElementById('find'); box.value = 'reach';"
            "box.dispatchEvent(new Event('input'))"
        )
        assert page.ask(f"{shown}.every(r => r.cells[0].textContent === 'reach')")
        assert page.ask(
            """new Promise((done) => {
              const cell = document.querySelector(".cells a.k-success");
              addEventListener("hashchange", () => setTimeout(() =>
                done(!document.querySelector(cell.getAttribute("href")).hidden)));
              cell.click();
            })"""
        )
        assert page.complaints == []


@pytest.mark.slow
def test_script_that_slipped_in_would_not_run(
    chromium: Browser, compared: Path, tmp_path: Path
) -> None:
    text = compared.read_text().replace("<main>", "<script>window.slipped = 1</script><main>")
    (tmp_path / "page.html").write_text(text)
    with chromium.page() as page:
        page.open(tmp_path / "page.html")
        assert page.ask("window.slipped") is None
        assert page.complaints, "the browser says that it was refused"
