"""The pages in a real browser: drawn, quiet, and content with what lies beside them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from test_report_page import large

import hocket
from hocket.core.data import Outcome, Trial
from hocket.results.comparing.compare import compare_runs
from hocket.results.comparing.side import Side
from hocket.results.page import widgets
from hocket.results.page.compare_page import write_compare_page
from hocket.results.page.document import document
from hocket.results.page.report_page import write_bundle, write_report_page
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
  const cards = document.querySelectorAll("#feed .card video");
  if ([...cards].some((video) => video.readyState)) return "not still";
  cards[0].click();
  const video = document.querySelector("#episode video");
  await new Promise((done, failed) => {
    video.addEventListener("timeupdate", () => video.currentTime > 0 && done());
    video.addEventListener("error", () => failed(video.error.message));
  });
  return [video.videoWidth, document.querySelectorAll(".scrubber i").length > 0];
})()
"""
ROWS = "[...document.querySelectorAll('#episode-list tr')]"
ROW = {"texts": ["", "", ""], "kind": "success", "strong": False}
CHARTS = [
    {
        "draw": "intervals",
        "rows": [
            {"label": "none", "value": None, "interval": None, **ROW},
            {"label": "half", "value": 0.5, "interval": [0.25, 0.75], **ROW},
            {"label": "beyond", "value": 9.0, "interval": [-9.0, 9.0], **ROW},
        ],
        "ticks": [[0.0, "0"], [1.0, "1"]],
        "zero": None,
    },
    widgets.bar([("success", "a", 3.0), ("finished", "none", 0.0), ("failure", "b", 1.0)]),
    {"draw": "area", "values": [1, 2, 4], "label": "pace", "axis": ("0", "", "3 s")},
]


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


def test_link_to_a_video_opens_its_episode_with_the_other_cameras(
    chromium: Browser, filmed: Path
) -> None:
    with chromium.page() as page:
        page.open(filmed)
        page.ask("document.querySelectorAll('#episode-list a.film')[1].click()")
        assert page.ask("document.querySelector('dialog').open")
        films = page.ask("[...document.querySelectorAll('dialog .films video')].map((v) => v.src)")
        assert [film.rpartition("/")[2] for film in films] == ["image.mp4", "wrist_image.mp4"]
        assert page.complaints == []


def test_a_bundle_plays_its_films_far_from_the_run(
    chromium: Browser, filmed: Path, tmp_path: Path
) -> None:
    bundle = shutil.copy(write_bundle(filmed.parent, 20.0), tmp_path / "mailed.html")
    with chromium.page() as page:
        page.open(bundle)
        assert page.ask(PLAYED) == [64, True]
        assert {url.partition(":")[0] for url in page.requests} == {"file", "data"}
        assert [url for url in page.requests if url.startswith("file")] == [bundle.as_uri()]
        assert page.complaints == []


def test_filters_hide_episodes_and_a_link_to_an_episode_opens_it(
    chromium: Browser, compared: Path
) -> None:
    report = compared.parent / "b" / "report.html"
    with chromium.page() as page:
        page.open(report)
        assert page.ask(f"{ROWS}.length") == 36
        chip = "document.querySelector('#episodes button[data-filter={}]')"
        page.until(f"{chip.format('failure')} !== null")
        page.ask(f"{chip.format('failure')}.click()")
        page.until(f"{ROWS}.length === 9")
        only = "document.querySelector('#episodes .only').textContent"
        assert page.ask(only) == "only failures: 9 of 36"
        page.ask(f"{chip.format('error')}.click()")
        page.until(f"{ROWS}.length === 18")
        assert page.ask(only) == "only failures and errors: 18 of 36"
        assert page.ask(f"new Set({ROWS}.map(r => r.dataset.outcome)).has('success')") is False
        page.ask(
            "const box = document.getElementById('find'); box.value = 'reach';"
            "box.dispatchEvent(new Event('input'))"
        )
        assert page.ask(f"{ROWS}.every(r => r.cells[0].textContent === 'reach')")
        assert page.ask("document.getElementById('count').textContent") == "6 episodes"
        page.press("j")
        wrong = page.ask("hocket.grid.letter(hocket.player.shown.cell)")
        assert wrong in "FE"
        assert page.ask("location.hash === `#e${hocket.player.shown.cell}`")
        page.go("about:blank")
        page.go(f"{report.as_uri()}#e3")
        page.until("hocket.player.shown?.cell === 3")
        assert "seed 1" in page.ask("document.querySelector('#episode h3').textContent")
        assert page.complaints == []


def test_a_chart_and_the_table_tell_one_figure(chromium: Browser, tmp_path: Path) -> None:
    """1 of 16 is 6.25 %, and 5 of 8 62.5 %, which digits alone could round up or down."""
    run = record_run(
        tmp_path / "run",
        plan(["push", "reach"], 16),
        lambda t: SUCCESS if t.seed < (1 if t.task == "push" else 10) else FAILURE,
    )
    with chromium.page() as page:
        page.open(write_report_page(run))
        charted = page.ask(
            "[...document.querySelectorAll('#success .ic-value')].map((row) =>"
            " [...row.children].slice(0, 2).map((one) => one.textContent))"
        )
        tabled = page.ask(
            "[...document.querySelectorAll('#numbers tr')].slice(2).map((row) =>"
            " [...row.children].slice(2, 4).map((one) => one.textContent))"
        )
        assert charted == [tabled[2], *tabled[:2]]
        assert charted[1][0] == "6.2 %"
        rounded = "[0.25, 0.75, 1.25, 6.35, 0.125, 2.5].map((one) => hocket.fixed(one, 1))"
        assert page.ask(rounded) == [f"{one:.1f}" for one in (0.25, 0.75, 1.25, 6.35, 0.125, 2.5)]


def test_an_error_is_shown_with_its_own_text(chromium: Browser, compared: Path) -> None:
    with chromium.page() as page:
        page.open(compared.parent / "b" / "report.html")
        page.ask("hocket.open([...Array(36).keys()].find((c) => hocket.grid.letter(c) === 'E'))")
        seed = page.ask("hocket.grid.seed(hocket.player.shown.cell)")
        assert page.ask("document.querySelector('#episode pre').textContent").endswith(f"0x{seed}")
        assert page.complaints == []


def test_charts_show_what_there_is_and_stay_on_their_scale(
    chromium: Browser, tmp_path: Path
) -> None:
    data = {"title": "charts", "kicker": "", "sections": [widgets.section("a", "A", *CHARTS)]}
    file = tmp_path / "charts.html"
    file.write_text(document(data))
    with chromium.page() as page:
        page.open(file)
        assert page.ask("document.querySelectorAll('circle').length") == 2
        places = page.ask(
            "[...document.querySelectorAll('rect, circle')].map((one) => [one.getAttribute('x')"
            " || one.getAttribute('cx'), one.getAttribute('width')])"
        )
        assert places == [["25%", "50%"], ["50%", None], ["0%", "100%"], ["100%", None]]
        grown = "[...document.querySelectorAll('.shares i')].map((one) => one.style.flexGrow)"
        assert page.ask(grown) == ["0.75", "0.25"]
        path = page.ask("document.querySelector('path').getAttribute('d')")
        assert path.endswith("L30 100L0 100Z"), "an area begins and ends on the ground"
        assert "NaN" not in path
        assert page.complaints == []


@pytest.mark.parametrize(
    ("value", "ceiling"), [(0.0, 1), (-1.0, 1), (0.021, 0.025), (1.0, 1), (3.1, 5), (260.0, 500)]
)
def test_the_end_of_a_scale_is_round_near_and_not_below(
    chromium: Browser, compared: Path, value: float, ceiling: float
) -> None:
    with chromium.page() as page:
        page.open(compared)
        assert page.ask(f"hocket.niceCeiling({value})") == pytest.approx(ceiling)


def test_columns_of_lengths_hold_all_episodes(chromium: Browser, tmp_path: Path) -> None:
    run = record_run(tmp_path / "run", plan(["push"], 12), mixed)
    with chromium.page() as page:
        page.open(write_report_page(run))
        path = "#length-chart path"
        paths = page.ask(f"[...document.querySelectorAll('{path}')].map((p) => p.outerHTML)")
        assert len(paths) == 2, "errors have no length"
        high = {p.split('"')[1]: sum(map(float, re.findall(r"v([\d.]+)h", p))) for p in paths}
        assert high == pytest.approx({"k-success": 200 / 3, "k-failure": 100 / 3}, abs=0.01)
        told = page.ask("document.querySelector('#length-chart .legend').textContent")
        assert told == "success median 16 steps, n = 6failure median 16 steps, n = 3"


def test_cells_of_pairs_have_the_colours_of_their_legend(chromium: Browser, compared: Path) -> None:
    with chromium.page() as page:
        page.open(compared)
        page.until("hocket.grid.painted > 0")
        letters = page.ask("[...Array(36).keys()].map((cell) => hocket.grid.letter(cell))")
        painted = page.ask(
            """[...Array(36).keys()].map((cell) => {
              const { grid } = hocket, row = grid.task(cell), at = grid.rows[row].indexOf(cell);
              const x = grid.left + at * (grid.wide + grid.gap) + grid.wide / 2;
              const pen = document.getElementById("grid").getContext("2d");
              const [r, g, b] = pen.getImageData(x, grid.tops[row] + grid.size / 2, 1, 1).data;
              return `rgb(${r}, ${g}, ${b})`;
            })"""
        )
        legend = page.ask(
            "Object.fromEntries([...document.querySelectorAll('#outcomes .legend li')].map((one) =>"
            " [one.textContent, getComputedStyle(one.firstChild).backgroundColor]))"
        )
        names = {"2": "both succeeded 18", "a": "only a 9", "e": "error on one side 9"}
        assert {*letters} == {*names}
        assert painted == [legend[names[letter]] for letter in letters]


@pytest.mark.slow
def test_of_many_trials_errors_and_failures_are_in_sight(chromium: Browser, tmp_path: Path) -> None:
    run = tmp_path / "run"
    large(run, 300, 100)
    write_report_page(run)
    with chromium.page() as page:
        page.open(run / "report.html")
        page.until("document.querySelectorAll('#episode-list tr').length === 60")
        assert page.ask(f"{ROWS}.every((row) => row.dataset.outcome === 'error')")
        colours = page.ask(
            """(() => {
              const canvas = document.getElementById("grid"), pen = canvas.getContext("2d");
              const strip = pen.getImageData(canvas.width - 6, 0, 1, canvas.height).data;
              const found = new Set();
              for (let i = 0; i < strip.length; i += 4) found.add(strip.slice(i, i + 3).join());
              return [...found];
            })()"""
        )
        error = page.ask(
            "(() => { const pen = document.createElement('canvas').getContext('2d');"
            " pen.fillStyle = getComputedStyle(document.body).getPropertyValue('--error');"
            " pen.fillRect(0, 0, 1, 1); return pen.getImageData(0, 0, 1, 1).data"
            ".slice(0, 3).join(); })()"
        )
        assert error in colours, "the rail beside the grid shows errors that are not scrolled to"
        (run / "report_data.js").unlink()
        page.open(run / "report.html")
        page.until("document.getElementById('alerts').textContent.includes('not beside')")


@pytest.mark.slow
def test_script_that_slipped_in_would_not_run(
    chromium: Browser, compared: Path, tmp_path: Path
) -> None:
    text = compared.read_text().replace(
        '<main id="main">', '<script>window.slipped = 1</script><main id="main">'
    )
    (tmp_path / "page.html").write_text(text)
    with chromium.page() as page:
        page.open(tmp_path / "page.html")
        assert page.ask("window.slipped") is None
        assert page.complaints, "the browser says that it was refused"
