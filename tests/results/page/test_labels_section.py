"""Labels in the report."""

from __future__ import annotations

from pathlib import Path

from hocket.records.labels import add_label
from hocket.results.page.report_page import report_page
from hocket.results.recorded import open_recorded
from support.recorded_runs import FAILURE, SUCCESS, plan, record_run

TRIALS = plan(["push"], 10)


def test_labels_stand_in_a_table_with_their_shares_of_labelled_failures(tmp_path: Path) -> None:
    run = record_run(tmp_path / "run", TRIALS, lambda t: FAILURE if t.seed < 6 else SUCCESS)
    for trial, label in zip(TRIALS, ["missed", "missed", "<b>", "missed"], strict=False):
        add_label(run, trial, 0, label)
    add_label(run, TRIALS[9], 0, "slow")
    page = report_page(open_recorded(run))
    assert "4 of 6 failures have a label; shares are of these. 1 other episodes" in page
    # Wilson's interval of 3 of 4.
    assert '<td>missed</td><td class="n">3</td><td>75.0 %</td><td>[30.1, 95.4]</td>' in page
    assert "<td>&lt;b&gt;</td>" in page
    assert "<td>slow</td>" not in page


def test_a_report_without_labels_says_nothing_of_them(tmp_path: Path) -> None:
    run = record_run(tmp_path / "run", TRIALS, lambda _: FAILURE)
    assert "label-table" not in report_page(open_recorded(run))
