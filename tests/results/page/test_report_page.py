"""`report.html`, from folders that the real ledger wrote."""

from __future__ import annotations

import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hocket.core.data import Outcome, Trial
from hocket.errors import RunFolderError
from hocket.results.exactness import Claim
from hocket.results.page.report_page import report_page, write_report_page
from hocket.results.recorded import RecordedRun, open_recorded
from hocket.results.report import Report, Throughput
from support.recorded_runs import ERROR, FAILURE, FINISHED, SUCCESS, episode_of, plan, record_run

VOID = {"meta", "input", "br", "rect", "line", "path", "circle", "wbr"}


class Reader(HTMLParser):
    """Checks that elements close, and gathers ids, links, classes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.classes: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        self.ids += [found["id"]] if found.get("id") else []  # type: ignore[list-item]
        self.links += [str(found[k]) for k in ("href", "src") if found.get(k)]
        self.classes += str(found.get("class") or "").split()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["script"]):
            self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids)), "an id stands for one place"
    inside = [link[1:] for link in reader.links if link.startswith("#")]
    assert set(inside) <= set(reader.ids), "links within the page lead somewhere"
    outside = [link for link in reader.links if not link.startswith("#")]
    assert not [link for link in outside if ":" in link.split("/")[0]], "nothing is fetched"
    return reader


def write(folder: Path) -> Reader:
    return read(write_report_page(folder).read_text(encoding="utf-8"))


def by_seed(trial: Trial) -> Outcome:
    return SUCCESS if trial.seed % 4 else FAILURE


def test_every_trial_has_its_cell_and_leads_to_its_episode(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push", "reach"], 8), by_seed)
    page = write(tmp_path)
    cells = [link for link in page.links if link.startswith("#e") and link[2:].isdigit()]
    assert len(cells) == 16
    assert "75.0" in page.text
    assert "n = 16" in page.text
    assert "hocket eval" in page.text
    assert "bitwise" in page.text


def test_without_a_success_signal_returns_are_shown_and_no_rate(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["walk"], 5), lambda _: FINISHED)
    page = write(tmp_path)
    assert "Return per task" in page.text
    assert "mean return" in page.text
    assert "Success per task" not in page.text


def test_only_errors_give_no_rate_and_one_traceback_for_alike_ones(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push"], 5), lambda _: ERROR)
    page = write(tmp_path)
    assert "there is no rate" in page.text
    assert page.tags.count("details") == 1
    assert "5 attempts at 5 trials, 5 of which ended as error" in page.text
    assert "RuntimeError: broke" in page.text


def test_one_episode_makes_a_page(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push"], 1), lambda _: SUCCESS)
    assert "n = 1" in write(tmp_path).text


def test_unfinished_run_says_so_and_shows_what_is_left(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push"], 9), lambda _: SUCCESS, ended=4)
    page = write(tmp_path)
    assert "Unfinished." in page.text
    assert "4 of 9 planned trials" in page.text
    assert page.classes.count("k-pending") >= 5


def test_run_before_its_first_episode_makes_a_page(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push"], 3), lambda _: SUCCESS, ended=0)
    assert "0 of 3 planned trials" in write(tmp_path).text


def test_nothing_that_a_run_says_becomes_markup(tmp_path: Path) -> None:
    nasty = "<script>alert('x')</script>\"><img src=http://x.example/>"
    record_run(
        tmp_path,
        plan([nasty], 2),
        lambda trial: ERROR if trial.seed else SUCCESS,
        config={"policy": nasty},
        about={"command": ["hocket", nasty], "versions": {nasty: nasty}},
    )
    page = write(tmp_path)
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert nasty in page.text


def test_page_of_a_folder_with_a_report_alone(tmp_path: Path) -> None:
    source, bare = tmp_path / "run", tmp_path / "bare"
    record_run(source, plan(["push"], 4), lambda _: SUCCESS)
    bare.mkdir()
    open_recorded(source).report.save(bare)
    page = write(bare)
    assert "n = 4" in page.text
    assert "Where the time went" not in page.text


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="There is no run"):
        write_report_page(tmp_path)


def test_videos_are_linked_beside_the_page_and_not_loaded_with_it(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push"], 2), lambda _: SUCCESS)
    film = tmp_path / "episodes" / "toy-push-1" / "0" / "cam.mp4"
    film.parent.mkdir(parents=True)
    film.write_bytes(b"no video at all")
    page = write(tmp_path)
    assert page.links.count("episodes/toy-push-1/0/cam.mp4") == 2, "in its card and its row"
    text = (tmp_path / "report.html").read_text()
    assert 'preload="none"' in text
    assert "poster=" not in text, "of a broken file there is no picture"


def test_page_survives_the_move_of_its_folder(tmp_path: Path) -> None:
    record_run(tmp_path / "here", plan(["push"], 2), lambda _: SUCCESS)
    write_report_page(tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert str(tmp_path) not in (tmp_path / "there" / "report.html").read_text()


def large(tasks: int, seeds: int) -> RecordedRun:
    trials = plan([f"task_{i}" for i in range(tasks)], seeds)
    choices = (SUCCESS, SUCCESS, FAILURE, SUCCESS, ERROR)
    episodes = [episode_of(trial, choices[(i + trial.seed) % 5]) for i, trial in enumerate(trials)]
    report = Report.build(
        config={},
        claim=Claim(level="inputs"),
        trials=trials,
        episodes=episodes,
        throughput=Throughput(),
        version="1",
    )
    return RecordedRun(
        folder=Path("runs/large"), report=report, about={}, trials=trials, failures=(), timing=None
    )


@pytest.mark.heavy
def test_large_run_is_put_together_and_says_what_is_left_out() -> None:
    text = report_page(large(20, 400))
    assert len(text) < 3_000_000
    page = read(text)
    assert "1,500 of 8,000 are listed" in page.text
    assert page.classes.count("k-share") == 20 * 50


@pytest.mark.slow
def test_page_of_a_hundred_thousand_episodes_stays_small() -> None:
    assert len(report_page(large(500, 200))) < 3_000_000
