from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from test_report_page import part, read, told

from hocket.records.folder import RunFolder
from hocket.results.comparing.compare import RunComparison, compare_runs
from hocket.results.comparing.side import Side
from hocket.results.page.compare_page import compare_page, write_compare_page
from support.recorded_runs import ERROR, FAILURE, FINISHED, SUCCESS, Choice, plan, record_run


def compared(root: Path, a: Choice, b: Choice, *, seeds: int = 6, tasks: int = 2) -> RunComparison:
    trials = plan([f"task_{i}" for i in range(tasks)], seeds)
    left = Side.open(record_run(root / "left", trials, a, chunks=1))
    right = Side.open(record_run(root / "right", trials, b, chunks=1))
    return compare_runs(left, right)


def test_every_pair_has_its_cell(tmp_path: Path) -> None:
    found = compared(tmp_path, lambda _: SUCCESS, lambda t: SUCCESS if t.seed % 3 else FAILURE)
    page = read(write_compare_page(found, tmp_path / "sub" / "page.html").read_text())
    assert page.data["sides"] == ["S" * 12, "FFSSSSFFSSSS"]
    assert page.data["plan"]["n"] == 12
    (legend,) = part(page, "outcomes")["body"]
    assert legend["entries"] == [["both", "both succeeded", "8"], ["only-a", "only a", "4"]]
    assert page.data["hero"]["verdict"][1] == found.sentence
    assert "left against right" in page.text
    assert "overall" in page.text, "the numbers stand without scripts"


def test_returns_have_differences_but_no_grid(tmp_path: Path) -> None:
    found = compared(tmp_path, lambda _: FINISHED, lambda _: FINISHED)
    page = read(compare_page(found, tmp_path / "x.html"))
    assert part(page, "differences")["title"] == "Difference per task"
    assert "sides" not in page.data
    assert "Every pair" not in told(page)


def test_nothing_to_compare_still_makes_a_page(tmp_path: Path) -> None:
    found = compared(tmp_path, lambda _: ERROR, lambda _: SUCCESS)
    page = read(compare_page(found, tmp_path / "x.html"))
    assert "Nothing to compare" in told(page)
    assert "Difference per task" not in told(page)


def test_of_many_tasks_the_largest_differences_are_shown_and_every_pair(tmp_path: Path) -> None:
    found = compared(tmp_path, lambda _: SUCCESS, lambda _: SUCCESS, seeds=3, tasks=125)
    page = read(compare_page(found, tmp_path / "x.html"))
    assert "The 120 largest of 125 tasks" in part(page, "differences")["lead"]
    assert page.data["plan"]["n"] == len(page.data["sides"][0]) == 375


def test_films_of_both_sides_stand_beside_each_other_and_differing_pairs_first(
    tmp_path: Path,
) -> None:
    found = compared(tmp_path, lambda _: SUCCESS, lambda t: FAILURE if t.seed == 2 else SUCCESS)
    for side, seeds in ((found.a, (0, 2)), (found.b, (0, 2, 4))):
        for trial in found.trials:
            if trial.seed in seeds and trial.task == "task_0":
                folder = RunFolder.at(side.folder).attempt(trial, side.episodes[trial].attempt)
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "image.mp4").write_bytes(b"")
    text = write_compare_page(found, tmp_path / "sub" / "page.html").read_text()
    assert "hocket video" not in text, "nothing is offered that cannot be made"
    for trial in found.trials:
        if (trial.task, trial.seed) in (("task_0", 4), ("task_1", 2)):
            folder = RunFolder.at(found.a.folder).attempt(trial, found.a.episodes[trial].attempt)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "states.npz").write_bytes(b"")
    page = read(write_compare_page(found, tmp_path / "sub" / "page.html").read_text())
    pairs = [each for each in part(page, "films")["body"] if each["draw"] == "pair"]
    films = [film["source"] for pair in pairs for film in pair["films"] if "source" in film]
    assert len(films) == 5
    assert all((tmp_path / "sub" / unquote(film)).is_file() for film in films)
    sides = [film.split("/")[1] for film in films]
    assert sides[:4] == ["left", "right"] * 2
    assert "-2/" in films[0]
    assert "-2/" in films[1], "the pair that differs stands first"
    makes = [film["make"] for pair in pairs for film in pair["films"] if "make" in film]
    assert [make.rpartition(" ")[2] for make in makes] == [found.trials[8].id]
    assert "Of 2 pairs that differ, 1 lack a film" in told(page)
