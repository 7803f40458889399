"""Labels in the report."""

from __future__ import annotations

from pathlib import Path

from test_report_page import part, write

from hocket.records.labels import add_label
from support.recorded_runs import FAILURE, SUCCESS, plan, record_run

TRIALS = plan(["push"], 10)


def test_labels_stand_in_a_table_with_their_shares_of_labelled_failures(tmp_path: Path) -> None:
    run = record_run(tmp_path / "run", TRIALS, lambda t: FAILURE if t.seed < 6 else SUCCESS)
    for trial, label in zip(TRIALS, ["missed", "missed", "<b>", "missed"], strict=False):
        add_label(run, trial, 0, label)
    add_label(run, TRIALS[9], 0, "slow")
    page = write(run)
    section = part(page, "labels")
    lead = "4 of 6 failures have a label; shares are of these. 1 other episodes have one, too."
    assert section["lead"] == lead
    (table,) = section["body"]
    # Wilson's interval of 3 of 4.
    assert table["rows"] == [
        ["missed", [0, 1, 3], "75.0 %", "[30.1, 95.4]"],
        ["<b>", [2], "25.0 %", "[4.6, 69.9]"],
    ]
    kept = {"0": "missed", "1": "missed", "2": "<b>", "3": "missed", "9": "slow"}
    assert page.data["labels"] == kept


def test_a_report_without_labels_says_nothing_of_them(tmp_path: Path) -> None:
    run = record_run(tmp_path / "run", TRIALS, lambda _: FAILURE)
    data = write(run).data
    assert "labels" not in [each["id"] for each in data["sections"]]
    assert data["labels"] == {}


def test_failures_are_grouped_by_how_they_ended(tmp_path: Path) -> None:
    run = record_run(tmp_path / "run", TRIALS, lambda _: FAILURE)
    (section,) = [each for each in write(run).data["sections"] if each["id"] == "failures"]
    (table,) = section["body"]
    assert table["head"] == "how"
    (row,) = table["rows"]
    assert (row[0], len(row[1])) == ("at the step limit", len(TRIALS))
