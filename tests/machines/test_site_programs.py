"""Sites are held to the program that the run folder holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hocket.machines import protocol
from hocket.records.ledger.view import LedgerView
from hocket.results.exactness import kept_claim
from machines.test_driver import learned
from runs.test_legs import Desk as EditedRun
from support.desk import PROGRAM, Desk

OTHER: dict[str, Any] = {**PROGRAM, "code": {"hocket": {"sha256": "2"}}}


def worked(folder: Path, *programs: dict[str, Any], mixed: bool = False) -> Desk:
    """A run of which each of these sites has made an episode, and whose driver is gone."""
    desk = Desk(folder, 8, mixed=mixed)
    for i, program in enumerate(programs):
        desk.join(f"s{i}", depends_on=program)
    for i in range(len(programs)):
        (lease, *_) = desk.leases(f"s{i}")
        desk.seal(f"s{i}", lease)
    desk.ledger.flush()
    desk.ledger.close()
    return desk


def test_a_site_that_joins_a_run_that_goes_on_is_held_to_its_folder(tmp_path: Path) -> None:
    worked(tmp_path / "run", PROGRAM)
    desk = Desk(tmp_path / "run", 8, again=True)
    desk.join("other", depends_on=OTHER)
    (refused,) = desk.take(protocol.Refused, "other")
    assert "code of hocket: 1 before, 2 now" in refused.why
    assert "--site.mixed" in refused.why
    desk.driver.tick(20.0)  # what was leased to the last driver's sites is free again
    desk.join("same", depends_on=PROGRAM, now=20.0)
    assert desk.leases("same")
    assert not desk.leases("other")


def test_sites_that_may_differ_are_legs_whose_episodes_are_told_apart(tmp_path: Path) -> None:
    desk = worked(tmp_path / "run", PROGRAM, OTHER, mixed=True)
    with LedgerView.open(tmp_path / "run") as ledger:
        assert [(leg.host, leg.episodes) for leg in ledger.legs()] == [
            ("name of s0", 1),
            ("name of s1", 1),
        ]
        assert kept_claim(ledger, {"exactness": "bitwise"}).changed == (
            "code of hocket: 1 before, 2 now",
        )
    assert desk


def test_a_site_with_another_model_is_refused_before_it_has_an_episode(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "run")
    desk.join("a")
    desk.join("b")
    desk.driver.hear("a", learned("llvmpipe", model_sha256="1"), 0.0)
    desk.driver.hear("b", learned("llvmpipe", model_sha256="2"), 0.0)
    (refused,) = desk.take(protocol.Refused, "b")
    assert "model_sha256: 2 at name of b, 1 at name of a" in refused.why
    assert not desk.take(protocol.Refused, "a")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_where_every_site_is_refused_the_command_says_why_and_what_lets_them_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    edited = EditedRun(tmp_path)
    edited.begin(lanes=1)
    edited.write_rules("9.0")
    words = [sys.executable, "-m", "hocket", "resume", "run", "--machines", "local:1"]
    refused = subprocess.run(words, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    last = refused.stderr.splitlines()[-1]
    assert "was refused" in last
    assert f"code of {edited.name}_rules" in last
    assert "Fatal Python error" not in refused.stderr
    allowed = subprocess.run(
        [*words, "--allow-changes"], capture_output=True, text=True, check=False
    )
    assert allowed.returncode == 0, allowed.stderr
    assert "Several programs" in allowed.stdout
