"""Names of any length and with any letters in them run, are recorded, and are shown unobeyed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hocket.cli import main
from hocket.core.data import Trial
from hocket.records.ledger.view import LedgerView
from support.odd_suite import LONG, NAMES, WIDE

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def test_run_of_odd_names_is_whole_and_prints_no_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    wanted = ["--episodes", "1", "--lanes", "2", "--retries", "0", "--video", "none"]
    env = ["--env", "support.odd_suite:OddSuite", "--policy", "random"]
    assert main(["eval", *env, *wanted, "--out", run]) == 1
    with LedgerView.open(run) as ledger:
        outcomes = {e.trial.task: e.outcome.value for e in ledger.episodes()}
        broken, *_ = ledger.failures()
    assert set(outcomes) == set(NAMES)
    assert sorted(outcomes.values()) == ["error"] + ["success"] * 5
    assert main(["report", run]) == 0
    assert main(["compare", run, run]) == 0
    assert main(["replay", run, broken.trial.id]) == 2
    for form in ("lerobot", "hdf5"):
        assert main(["export", run, "--to", form, "--out", str(tmp_path / form)]) == 0
    printed = capsys.readouterr()
    for text in (printed.out, printed.err, (tmp_path / "run" / "report.html").read_text()):
        assert CONTROL.findall(text) == []
        assert r"\x1b[31m" in text
    assert "<script>alert" not in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("task", [LONG, WIDE])
def test_folder_of_a_long_name_fits_and_is_its_own(tmp_path: Path, task: str) -> None:
    one, other = Trial("suite", task, 0), Trial("suite", f"{task}y", 0)
    assert one.slug != other.slug
    assert one.slug == Trial("suite", task, 0).slug
    for trial in (one, other):
        (tmp_path / trial.slug / f".{'camera' * 8}.mp4.tmp").parent.mkdir()
    assert Trial("suite", "pick up/[x]", 3, 1).slug == "suite-pick-up--x--3.1"
