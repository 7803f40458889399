"""A site with a fault of its own leaves, and says which; the others do its trials."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import support
from hocket.core.data import Outcome
from hocket.machines import protocol
from hocket.machines.leasing.entries import LeaseId
from hocket.machines.leasing.leases import SICK
from hocket.records.ledger.view import LedgerView
from machines.test_driver import learned
from machines.test_leases import book
from machines.test_random_faults import SMALL_PIECES
from machines.test_site_faults import finish
from support.broken_site import BROKEN
from support.desk import Desk
from support.parts import missing
from support.processes import DEADLINE_S, wait_until
from support.sites import assert_same, run_here, toys


def test_a_trial_that_failed_at_a_site_is_tried_at_another_one() -> None:
    leases = book(1, retries=2)
    leases.join("sick", 1, 0.0)
    (one,) = leases.grant(0.0)
    leases.join("well", 1, 0.0)
    assert not leases.give_back(one.id, spends=True)
    assert leases.grant(0.0, ["sick"]) == []
    (again,) = leases.grant(0.0, ["sick", "well"])
    assert (again.site, again.id.attempt) == ("well", 1)
    assert not leases.give_back(again.id, spends=True)
    # It has failed everywhere: then anybody may try.
    assert [lease.site for lease in leases.grant(0.0, ["sick"])] == ["sick"]


def test_a_trial_that_failed_goes_back_to_its_site_when_no_other_is_left() -> None:
    leases = book(1, retries=2)
    for site in ("sick", "well"):
        leases.join(site, 1, 0.0)
    (one,) = leases.grant(0.0, ["sick"])
    leases.give_back(one.id, spends=True)
    leases.leave("well")
    assert [lease.site for lease in leases.grant(0.0)] == ["sick"]


def test_a_site_is_sick_when_nothing_but_failures_come_from_it_and_others_do_not_fail() -> None:
    leases = book(40, retries=2)
    for site in ("sick", "well"):
        leases.join(site, 2, 0.0)
    while not leases.sick():
        for lease in leases.grant(0.0):
            if lease.site == "sick":
                leases.give_back(lease.id, spends=True)
            else:
                leases.seal(lease.id, 1.0)
        assert not leases.is_done
    assert leases.sick() == ["sick"]


def test_a_site_that_fails_as_often_as_others_is_not_sick() -> None:
    leases, draw = book(400, retries=2), random.Random(7)
    for site in ("a", "b"):
        leases.join(site, 2, 0.0)
    while not leases.is_done:
        for lease in leases.grant(0.0):
            if draw.random() < 0.6:
                leases.give_back(lease.id, spends=True)
            else:
                leases.seal(lease.id, 1.0)
        assert leases.sick() == []


def test_a_sick_site_is_put_out_with_its_reason_and_gets_nothing_when_it_comes_again(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path / "run", 30, retries=2)
    desk.join("sick")
    desk.join("well")
    while not (refused := desk.take(protocol.Refused, "sick")):
        for lease in desk.leases("sick"):
            desk.driver.hear("sick", protocol.Returned(*lease, "dead GPU", True, []), 0.0)
            desk.driver.turn(0.0)
        for lease in desk.leases("well"):
            desk.seal("well", lease)
    assert f"{SICK} trials that failed here ended elsewhere" in refused[0].why
    assert "dead GPU" in refused[0].why
    assert "name of sick" in str(desk.driver.trouble)
    desk.hello("sick")
    assert desk.take(protocol.Refused, "sick") == refused
    while not desk.driver.is_done:
        for lease in desk.leases("well"):
            desk.seal("well", lease)
    assert all(e.outcome is Outcome.SUCCESS for e in desk.ledger.episodes())


def test_a_site_at_which_no_env_can_be_built_leaves_its_trial_to_others(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "run", 1, retries=1)
    desk.join("sick")
    for attempt in range(2):
        assert desk.leases("sick") == [LeaseId(0, attempt)]
        desk.driver.hear("sick", protocol.Returned(0, attempt, "no scene.xml", True, []), 0.0)
        desk.driver.turn(0.0)
    (refused,) = desk.take(protocol.Refused, "sick")
    assert "No episode could begin, in 2 attempts.\nno scene.xml" in refused.why
    assert not desk.driver.is_doomed
    desk.join("well")
    desk.seal("well", *desk.leases("well"))
    assert desk.driver.is_done


@pytest.mark.parametrize("is_alone", [True, False])
def test_retries_that_were_used_up_where_nothing_ever_ended_count_once_nobody_else_tries(
    tmp_path: Path, *, is_alone: bool
) -> None:
    desk = Desk(tmp_path / "run", 2, retries=0)
    desk.join("sick")
    desk.driver.hear("sick", learned("llvmpipe"), 0.0)
    (first,) = desk.leases("sick")
    desk.driver.hear("sick", protocol.Returned(*first, "dead GPU", True, []), 0.0)
    desk.driver.turn(0.0)
    (other,) = desk.leases("sick")
    if is_alone:
        desk.driver.tick(0.0)
        assert not desk.driver.is_done
    else:
        desk.hello("well")  # It loads its policy.
    desk.driver.hear("sick", protocol.Returned(*other, "dead GPU", True, []), 0.0)
    desk.driver.turn(0.0)
    desk.driver.tick(0.0)
    assert desk.driver.is_done == is_alone
    if not is_alone:
        desk.say_joined("well", lanes=2)
        for lease in desk.leases("well"):
            desk.seal("well", lease)
    assert desk.driver.is_done
    desk.driver.finish(1.0)
    desk.ledger.close()
    with LedgerView.open(desk.folder) as ledger:
        outcomes = {episode.outcome for episode in ledger.episodes()}
        errors = [failure.error for failure in ledger.failures()]
    assert outcomes == {Outcome.ERROR if is_alone else Outcome.SUCCESS}
    assert errors == ["dead GPU", "dead GPU"]


def fail_at_all(desk: Desk, site: str) -> None:
    desk.driver.hear(site, learned("llvmpipe"), 0.0)
    while leases := desk.leases(site):
        for lease in leases:
            desk.driver.hear(site, protocol.Returned(*lease, "dead GPU", True, []), 0.0)
        desk.driver.turn(0.0)
    desk.driver.tick(0.0)


def test_a_broken_site_that_comes_first_and_alone_is_put_out_and_spends_nothing(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path / "run", 4, retries=1)
    desk.driver.may_grow = True
    desk.join("sick", lanes=2)
    fail_at_all(desk, "sick")
    (refused,) = desk.take(protocol.Refused, "sick")
    assert "All that is left to do has failed here, and nothing ended." in refused.why
    assert "dead GPU" in refused.why
    assert not desk.driver.is_done
    assert not desk.driver.is_doomed
    desk.join("well", lanes=4)
    first, *others = desk.leases("well")
    # A retry that was spent there is there again.
    desk.driver.hear("well", protocol.Returned(*first, "a slip", True, []), 0.0)
    for lease in others:
        desk.seal("well", lease)
    desk.seal("well", *desk.leases("well"))
    assert desk.driver.is_done
    desk.driver.finish(1.0)
    assert {episode.outcome for episode in desk.ledger.episodes()} == {Outcome.SUCCESS}


def test_a_site_at_which_something_has_ended_is_not_blamed_for_what_else_has_failed(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path / "run", 2, retries=0)
    desk.driver.may_grow = True
    desk.join("well", lanes=2)
    one, other = desk.leases("well")
    desk.driver.hear("well", learned("llvmpipe"), 0.0)
    desk.driver.hear("well", protocol.Returned(*one, "a bad trial", True, []), 0.0)
    desk.seal("well", other)
    desk.driver.tick(0.0)
    assert not desk.take(protocol.Refused)
    assert desk.driver.is_done
    desk.driver.finish(1.0)
    outcomes = sorted(episode.outcome.value for episode in desk.ledger.episodes())
    assert outcomes == ["error", "success"]


def test_a_run_at_which_one_site_after_the_other_fails_ends_in_words_and_spends_nothing(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path / "run", 2, retries=0)
    desk.driver.may_grow = True
    for number, site in enumerate(("one", "two")):
        desk.join(site, lanes=2)
        fail_at_all(desk, site)
        assert desk.driver.is_doomed == bool(number)
    assert "name of two was put out" in str(desk.driver.trouble)
    desk.driver.finish(1.0)
    assert not desk.ledger.episodes()


# -- real processes ------------------------------------------------------------------------------

WHERE = ("--machines", "listen:127.0.0.1:0", "--site.lease", "10", "--lanes", "2", "--retries", "2")
KEPT = ("--video", "none", "--out", "run", "--episodes", "60")
BROKEN_ONE: dict[str, Any] = {
    "env": ("support.broken_site:make",),
    "policy": "support.broken_site:Zeros",
}
HEAVY: dict[str, Any] = {"env": ("support.heavy_env:make",), "policy": "random", "record": "full"}


class Beside:
    """A run that listens, a site that is well and one that is broken."""

    def __init__(self, folder: Path, env: Sequence[str], policy: str, **more: str) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        named = [word for key, value in more.items() for word in (f"--{key}", value)]
        words = ("--env", *env, "--policy", policy, *named, *KEPT, *WHERE)
        self.driver = self._start("eval", *words, log="log")
        wait_until(lambda: b"Sites join with" in (folder / "log").read_bytes())
        told = self.told.partition("Sites join with: hocket ")[2]
        self.words = told.splitlines()[0].split()

    @property
    def told(self) -> str:
        return (self.folder / "log").read_text()

    def _start(
        self, *words: str, log: str, program: Sequence[str] = ("-m", "hocket")
    ) -> subprocess.Popen[bytes]:
        with open(self.folder / log, "wb") as file:
            command = [sys.executable, *program, *words]
            self.processes.append(
                subprocess.Popen(command, cwd=self.folder, stdout=file, stderr=file)
            )
        return self.processes[-1]

    def add(self, name: str, program: Sequence[str] = ("-m", "hocket")) -> subprocess.Popen[bytes]:
        return self._start(*self.words, "--name", name, log=f"site-{name}", program=program)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Beside]:
    monkeypatch.setenv("PYTHONPATH", str(Path(support.__file__).parent.parent))
    found = Beside(tmp_path, **getattr(request, "param", BROKEN_ONE))
    yield found
    found.close()


def assert_whole(folder: Path, **fields: Any) -> None:
    run_here(toys(episodes=60, **fields), folder / "here")
    assert_same(folder / "here", folder / "run")
    with LedgerView.open(folder / "run") as ledger:
        assert all(e.outcome is not Outcome.ERROR for e in ledger.episodes())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("file", "scene.xml"),
        ("gpu", "device-side assert"),
        ("policy", "libcudart"),
    ],
)
def test_a_fault_of_one_site_is_told_by_its_name_and_ends_it_alone(
    beside: Beside, monkeypatch: pytest.MonkeyPatch, how: str, said: str
) -> None:
    monkeypatch.setenv(BROKEN, how)
    broken = beside.add("broken-one")
    monkeypatch.delenv(BROKEN)
    wait_until(lambda: "broken-one" in beside.told or beside.driver.poll() is not None)
    beside.add("well")
    finish(beside.driver, beside.folder / "log")
    assert broken.wait(DEADLINE_S) != 0
    assert "broken-one" in beside.told
    assert said in beside.told
    assert_whole(beside.folder, **BROKEN_ONE)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that is full after half a megabyte."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip(missing("a full disk", "as root, where file systems may be mounted"))
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("beside", [HEAVY], indirect=True)
def test_a_full_disk_at_one_site_ends_that_site_alone(
    beside: Beside, tiny_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes its files, whole megabytes for an episode, where there is no room for them."""
    monkeypatch.setenv("TMPDIR", str(tiny_disk))
    broken = beside.add("broken-one", program=("-c", SMALL_PIECES))
    monkeypatch.delenv("TMPDIR")
    beside.add("well")
    finish(beside.driver, beside.folder / "log")
    assert broken.wait(DEADLINE_S) != 0
    assert re.search(
        r"broken-one has left: (No space is left for|'.*' cannot be written)", beside.told
    )
    assert_whole(beside.folder, **HEAVY)
