"""`report.html`, from folders that the real ledger wrote."""

from __future__ import annotations

import base64
import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hocket.core.data import Outcome, Trial
from hocket.errors import RunFolderError
from hocket.results.exactness import Claim
from hocket.results.page.report_page import write_bundle, write_report_page
from hocket.results.recorded import open_recorded
from hocket.results.report import Report
from hocket.results.throughput import Throughput
from support.recorded_runs import ERROR, FAILURE, FINISHED, SUCCESS, episode_of, plan, record_run

VOID = {"meta", "input", "br", "link"}


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
        self.data: dict[str, Any] = {}

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
        if self.open[-1:] == ["script"] and data.startswith("{"):
            self.data = json.loads(data)
        if self.open[-1:] not in (["style"], ["script"]):
            self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids)), "an id stands for one place"
    outside = [link for link in reader.links if not link.startswith("#")]
    assert outside == ["data:,"], "nothing is fetched, no icon either"
    return reader


def write(folder: Path) -> Reader:
    return read(write_report_page(folder).read_text(encoding="utf-8"))


def part(page: Reader, anchor: str) -> dict[str, Any]:
    """A part of the page, of which there is one."""
    (found,) = [each for each in page.data["sections"] if each["id"] == anchor]
    return dict(found)


def told(page: Reader) -> str:
    """All texts of a page's data."""
    return json.dumps(page.data, ensure_ascii=False)


def by_seed(trial: Trial) -> Outcome:
    return SUCCESS if trial.seed % 4 else FAILURE


def test_every_trial_has_its_cell_and_all_that_is_known_of_its_episode(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push", "reach"], 8), by_seed)
    page = write(tmp_path)
    assert page.data["outcomes"] == "FFSSSSSS" * 2
    assert page.data["plan"] == {"tasks": [["toy", "push"], ["toy", "reach"]], "n": 16, "first": 0}
    assert page.data["columns"]["steps"] == [16] * 16
    assert page.data["columns"]["reward"] == [float(seed) for seed in range(8) for _ in "ab"]
    assert page.data["hero"]["big"] == ["75.0", " %"]
    assert ", n = 16" in page.data["hero"]["notes"][0]
    assert "hocket eval" in told(page)
    assert "bitwise" in told(page)


def test_the_numbers_stand_in_the_page_without_scripts(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push"], 8), by_seed)
    page = write(tmp_path)
    assert "table" in page.tags
    for text in ("scripted on toy", "push", "overall", "75.0 %", "[40.9, 92.9]", "8 trials"):
        assert text in page.text


def test_without_a_success_signal_returns_are_shown_and_no_rate(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["walk"], 5), lambda _: FINISHED)
    page = write(tmp_path)
    assert part(page, "success")["title"] == "Return per task"
    assert "mean return" in told(page)
    assert "Success per task" not in told(page)


def test_only_errors_give_no_rate_and_one_traceback_for_alike_ones(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push"], 5), lambda _: ERROR)
    page = write(tmp_path)
    assert "there is no rate" in told(page)
    (fault,) = part(page, "errors")["body"]
    assert fault["counts"] == "5 attempts at 5 trials, 5 of which ended as error"
    assert fault["headline"].startswith("RuntimeError: broke")
    assert page.data["errors"]["3"]["error"].endswith("broke at 0x3"), "each has its own text"


def test_one_episode_makes_a_page(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push"], 1), lambda _: SUCCESS)
    assert ", n = 1" in told(write(tmp_path))


def test_unfinished_run_says_so_and_shows_what_is_left(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push"], 9), lambda _: SUCCESS, ended=4)
    page = write(tmp_path)
    assert "Unfinished." in told(page)
    assert "4 of 9 planned trials" in told(page)
    assert page.data["outcomes"] == "SSSS....."
    assert page.data["columns"]["seconds"][4:] == [None] * 5


def test_run_before_its_first_episode_makes_a_page(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push"], 3), lambda _: SUCCESS, ended=0)
    assert "0 of 3 planned trials" in told(write(tmp_path))


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
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    assert nasty in page.text
    assert page.data["plan"]["tasks"] == [["toy", nasty]]


def test_page_of_a_folder_with_a_report_alone(tmp_path: Path) -> None:
    source, bare = tmp_path / "run", tmp_path / "bare"
    record_run(source, plan(["push"], 4), lambda _: SUCCESS)
    bare.mkdir()
    open_recorded(source).report.save(bare)
    page = write(bare)
    assert ", n = 4" in told(page)
    assert "Where the time went" not in told(page)


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="There is no run"):
        write_report_page(tmp_path)


def look_in(run: Path, name: str) -> dict[str, Any]:
    """What a script beside the page tells of an attempt."""
    text = (run / "report_looks" / f"{name}.js").read_text()
    found: dict[str, Any] = json.loads(text.partition(",")[2].removesuffix(");\n"))
    return found


def test_videos_lie_beside_the_page(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push"], 2), lambda _: SUCCESS)
    film = tmp_path / "episodes" / "toy-push-1" / "0" / "cam.mp4"
    film.parent.mkdir(parents=True)
    film.write_bytes(b"no video at all")
    page = write(tmp_path)
    assert page.data["films"] == {"1": ["episodes/toy-push-1/0/cam.mp4"]}
    (item,) = page.data["feed"]
    assert item == {"cell": 1, "posters": [None]}, "of a broken file there is no picture"
    assert look_in(tmp_path, "1-0")["times"]["steps"] == [8, 8]


def test_a_bundle_has_the_films_of_failures_inside_first(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push"], 3), lambda t: FAILURE if t.seed == 1 else SUCCESS)
    for seed in range(3):
        film = tmp_path / "episodes" / f"toy-push-{seed}" / "0" / "cam.mp4"
        film.parent.mkdir(parents=True)
        film.write_bytes(b"%d" % seed * 3000)
    page = read(write_bundle(tmp_path, 0.0085).read_text(encoding="utf-8"))
    assert [*page.data["inside"]] == [f"episodes/toy-push-{seed}/0/cam.mp4" for seed in (1, 0)]
    kept = page.data["inside"]["episodes/toy-push-1/0/cam.mp4"].partition("base64,")[2]
    assert base64.b64decode(kept) == b"1" * 3000
    assert page.data["bundled"] == [2, 3], "it says how many there are"


def test_page_survives_the_move_of_its_folder(tmp_path: Path) -> None:
    record_run(tmp_path / "here", plan(["push"], 2), lambda _: SUCCESS)
    write_report_page(tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert str(tmp_path) not in (tmp_path / "there" / "report.html").read_text()


def large(folder: Path, tasks: int, seeds: int) -> Report:
    """The report of a run of which the folder has no more than that."""
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
    folder.mkdir()
    report.save(folder)
    return report


@pytest.mark.slow
def test_page_of_a_hundred_thousand_episodes_stays_small(tmp_path: Path) -> None:
    report = large(tmp_path / "run", 500, 200)
    page = write_report_page(tmp_path / "run", report)
    assert page.stat().st_size < 1_500_000
    found = read(page.read_text(encoding="utf-8")).data
    assert found["outcomes"].count("E") == 20_000, "no error is left out"
    assert "columns" not in found
    beside = (page.parent / found["beside"]).read_text(encoding="utf-8")
    columns = json.loads(beside.removeprefix("window.hocketColumns = ").rstrip(";\n"))
    assert len(columns["steps"]) == 100_000
    report = large(tmp_path / "small", 2, 2)
    for file in (page.parent / "report.json", page.parent / "report.html"):
        file.unlink()
    report.save(page.parent)
    write_report_page(page.parent, report)
    assert not (page.parent / found["beside"]).exists(), "nothing is left of the page before"
