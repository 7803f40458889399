from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from test_report_page import read

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
    target = write_compare_page(found, tmp_path / "sub" / "page.html")
    text = target.read_text()
    page = read(text)
    assert text.count('<span class="k-both" title=') == 8
    assert text.count('<span class="k-only-a" title=') == 4
    assert "task_1, seed 3: a success, b failure" in text
    assert found.sentence in page.text
    assert "left against right" in page.text


def test_returns_have_differences_but_no_grid(tmp_path: Path) -> None:
    page = read(
        compare_page(
            compared(tmp_path, lambda _: FINISHED, lambda _: FINISHED), tmp_path / "x.html"
        )
    )
    assert "Difference per task" in page.text
    assert "Every pair" not in page.text


def test_nothing_to_compare_still_makes_a_page(tmp_path: Path) -> None:
    page = read(
        compare_page(compared(tmp_path, lambda _: ERROR, lambda _: SUCCESS), tmp_path / "x.html")
    )
    assert "Nothing to compare" in page.text
    assert "Difference per task" not in page.text


def test_many_pairs_are_shown_as_shares(tmp_path: Path) -> None:
    found = compared(tmp_path, lambda _: SUCCESS, lambda _: SUCCESS, seeds=3, tasks=125)
    page = read(compare_page(found, tmp_path / "x.html"))
    assert "the shares of its pairs" in page.text
    assert "The 120 largest of 125 tasks" in page.text


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
    films = re.findall(r'<video src="([^"]*)"', text)
    assert len(films) == 5
    assert all((tmp_path / "sub" / unquote(film)).is_file() for film in films)
    sides = [film.split("/")[1] for film in films]
    assert sides[:4] == ["left", "right"] * 2
    assert "-2/" in films[0]
    assert "-2/" in films[1], "the pair that differs stands first"
    assert f"--trial {found.trials[0].suite}/task_0/4" in text, "what makes the one that is missing"
    assert "Of 2 pairs that differ, 1 lack a film" in text
