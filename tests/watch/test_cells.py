"""What is read of a ledger that somebody else writes, and when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.core.data import Outcome, Trial
from hocket.records.ledger.ledger import Ledger
from hocket.watch import cells as module
from hocket.watch.cells import Cells, find_twin
from support.recorded_runs import ERROR, FAILURE, SUCCESS, plan, play, record_run

TRIALS = plan(["push", "reach"], 10)


def mixed(trial: Trial) -> Outcome:
    return (SUCCESS, FAILURE, SUCCESS, ERROR)[trial.seed % 4]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return record_run(tmp_path / "run", TRIALS, mixed, ended=6)


@pytest.fixture
def cells(folder: Path) -> Iterator[Cells]:
    found = Cells(folder)
    yield found
    found.close()


def go_on(folder: Path, trials: list[Trial]) -> None:
    with Ledger.open(folder) as ledger:
        play(ledger, trials, mixed, 2)


def test_only_what_is_new_is_read_again(folder: Path, cells: Cells) -> None:
    assert cells.update() == [], "the first look tells all at once"
    assert cells.outcomes.decode() == "SSFFSS" + "." * 14
    assert cells.update() == []
    go_on(folder, TRIALS[6:9])
    assert [(one.cell, one.outcome) for one in cells.update()] == [(6, "E"), (7, "E"), (8, "S")]
    assert cells.outcomes.decode() == "SSFFSSEES" + "." * 11


@pytest.mark.parametrize("most", [500, 0])
def test_trials_that_end_late_are_not_missed(
    folder: Path, cells: Cells, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_GAPS", most)
    cells.update()
    go_on(folder, TRIALS[12:])
    assert [one.cell for one in cells.update()] == list(range(12, 20))
    go_on(folder, TRIALS[6:12])
    assert [one.cell for one in cells.update()] == list(range(6, 12))
    assert "." not in cells.outcomes.decode()


def test_trials_that_are_planned_later_become_cells(folder: Path, cells: Cells) -> None:
    cells.update()
    with Ledger.open(folder) as ledger:
        ledger.add_trials([Trial(suite="toy", task="new", seed=1)])
    cells.update()
    assert len(cells.plan) == 21
    assert cells.plan.kinds[-1] == ("toy", "new")


def test_the_rate_counts_every_task_once_and_no_errors(folder: Path, cells: Cells) -> None:
    cells.update()
    rate = cells.rate()
    assert (rate.n, rate.value, rate.errors) == (6, pytest.approx(4 / 6), 0)
    go_on(folder, TRIALS[6:])
    cells.update()
    assert cells.rate().errors == sum(mixed(trial) is ERROR for trial in TRIALS)


def test_failures_that_ended_last_come_last(folder: Path, cells: Cells) -> None:
    cells.update()
    go_on(folder, TRIALS[6:])
    cells.update()
    found = cells.last_failed(3)
    assert [(one.cell, one.outcome) for one in found] == [(15, "E"), (18, "F"), (19, "F")]


def test_a_run_is_compared_with_the_last_one_of_the_same_trials(tmp_path: Path) -> None:
    record_run(tmp_path / "other", plan(["push"], 3), mixed)
    record_run(tmp_path / "before", TRIALS, lambda _: FAILURE)
    mine = Cells(record_run(tmp_path / "now", TRIALS, lambda _: SUCCESS, ended=8))
    mine.update()
    twin = find_twin(tmp_path / "now", mine)
    assert twin is not None
    name, theirs = twin
    found = mine.compared(theirs)
    mine.close()
    theirs.close()
    assert name == "before"
    assert found is not None
    assert (found["n"], found["mine"], found["theirs"], found["difference"]) == (8, 1.0, 0.0, 1.0)
    assert found["interval"][0] > 0


def test_a_ledger_that_is_read_is_whole_without_its_wal_once_its_run_has_ended(
    folder: Path, tmp_path: Path, cells: Cells
) -> None:
    cells.update()
    go_on(folder, TRIALS[6:])
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "ledger.sqlite").write_bytes((folder / "ledger.sqlite").read_bytes())
    copied = Cells(copy)
    copied.update()
    copied.close()
    assert "." not in copied.outcomes.decode()
