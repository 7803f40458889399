"""The driver without sockets: what it posts, commits, refuses and drops."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.core.events import RunEnded
from hocket.core.specs import ActionSpec, EnvSpec, TaskInfo
from hocket.errors import WireError
from hocket.machines import protocol
from hocket.machines.deliveries import packed_rows
from hocket.machines.leasing.entries import LeaseId
from hocket.records.chunks import ChunkRow, load_chunks
from hocket.records.ledger.view import LedgerView
from support.desk import FILE, PROGRAM, Desk
from support.sites import attempts


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "run")


def test_the_number_of_a_lease_is_committed_before_it_is_sent(desk: Desk) -> None:
    seen = []

    def look(message: protocol.Message) -> None:
        if isinstance(message, protocol.Leased):
            seen.append([row[:2] for row in attempts(desk.folder)])

    desk.on_post = look
    desk.join("a", lanes=2)
    assert seen == [[(1, 0), (2, 0)]]
    assert desk.leases("a") == [LeaseId(0, 0), LeaseId(1, 0)]


def test_an_episode_is_acknowledged_once_it_is_committed_and_counts_once(desk: Desk) -> None:
    desk.join("a", lanes=2)
    one, _ = desk.leases("a")
    desk.pieces("a", one)
    desk.seal("a", one, files=[FILE])
    assert desk.settled("a") == [one]
    (episode,) = desk.ledger.episodes()
    assert (desk.folder / episode.files[0]).read_bytes() == b"data"
    desk.seal("a", one, files=[FILE])
    assert desk.settled("a") == [one]
    assert len(desk.ledger.episodes()) == 1
    assert desk.driver.late == 0


def test_a_late_episode_is_counted_and_dropped(desk: Desk) -> None:
    desk.join("a")
    (lost,) = desk.leases("a")
    desk.driver.tick(11.0)
    desk.join("b", lanes=2, now=11.0)
    again, other = desk.leases("b")
    assert (again.trial, again.attempt) == (lost.trial, 1)
    desk.say_joined("a", now=12.0, holds=[lost])
    desk.pieces("a", lost)
    desk.seal("a", lost, 12.0, files=[FILE])
    assert set(desk.settled("a")) == {lost}
    assert desk.driver.late == 1
    assert not list((desk.folder / "episodes").rglob(FILE))
    for lease in (again, other):
        desk.seal("b", lease, 12.0)
    assert desk.driver.is_done
    desk.driver.finish(13.0)
    assert [episode.attempt for episode in desk.ledger.episodes()] == [1, 0]
    (ended,) = [event for event in desk.events if isinstance(event, RunEnded)]
    assert ended.complete
    assert ended.notes["late"] == 1


def test_a_lost_site_spends_no_retry(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "run", count=1, retries=0)
    for number in range(3):
        desk.join(f"s{number}", now=20.0 * number)
        assert desk.leases(f"s{number}") == [LeaseId(0, number)]
        desk.driver.tick(20.0 * number + 11)
    desk.join("last", now=70.0)
    (lease,) = desk.leases("last")
    desk.seal("last", lease, 70.0)
    assert desk.driver.is_done


def test_what_a_dead_site_held_goes_to_others_at_once(desk: Desk) -> None:
    desk.join("a", lanes=2)
    begun, _ = desk.leases("a")
    desk.driver.hear("a", protocol.Began([begun]), 0.0)
    desk.driver.bury("name of a", 1.0, "was killed")
    desk.join("b", lanes=2, now=1.0)
    assert desk.leases("b") == [LeaseId(0, 1), LeaseId(1, 1)]
    desk.ledger.flush()
    with LedgerView.open(desk.folder) as ledger:
        lost = [(failure.trial, failure.error) for failure in ledger.failures()]
    # What had not begun there is no lost attempt.
    assert lost == [(desk.trials[0], "LostSite: name of a was killed.")]


def test_leases_that_were_lost_on_their_way_are_granted_again(desk: Desk) -> None:
    desk.join("a", lanes=2)
    one, other = desk.leases("a")
    desk.driver.disconnect("a")
    desk.join("a", lanes=2, now=1.0, holds=[one])
    assert desk.leases("a") == [LeaseId(other.trial, 1)]


def test_a_site_that_was_silent_for_too_long_takes_part_again_on_the_same_connection(
    desk: Desk,
) -> None:
    desk.join("a")
    (lease,) = desk.leases("a")
    (first,) = desk.take(protocol.Welcome, "a")
    desk.driver.tick(11.0)
    assert desk.take(protocol.Welcome, "a") == [first]
    # What it says before it has heard this is said of a lease that stands no more.
    desk.driver.hear("a", protocol.FilePiece(*lease, FILE, 0, b"da", b""), 11.0)
    desk.say_joined("a", now=11.0, holds=[lease])
    assert lease in desk.settled("a")
    (again,) = desk.leases("a")
    assert (again.trial, again.attempt) == (lease.trial, 1)


def test_what_had_come_of_a_site_that_joins_anew_comes_again_from_the_beginning(desk: Desk) -> None:
    desk.join("a")
    (lease,) = desk.leases("a")
    for come in (b"da", b"data"):
        desk.driver.hear("a", protocol.FilePiece(*lease, FILE, 0, come, b""), 0.0)
        desk.driver.disconnect("a")
        desk.join("a", now=1.0, holds=[lease])
    desk.pieces("a", lease)
    desk.driver.disconnect("a")
    desk.join("a", now=1.0, holds=[lease])
    desk.pieces("a", lease)
    desk.seal("a", lease, 1.0, files=[FILE])
    (episode,) = [desk.settled("a"), *desk.ledger.episodes()][1:]
    assert (desk.folder / episode.files[0]).read_bytes() == b"data"


def test_a_driver_that_goes_on_honours_the_leases_of_the_last_one(tmp_path: Path) -> None:
    first = Desk(tmp_path / "run", count=3)
    first.join("a", lanes=2)
    held = first.leases("a")
    first.ledger.close()
    second = Desk(tmp_path / "run", count=3, again=True)
    second.join("b")
    assert second.leases("b") == [LeaseId(2, 0)]
    second.join("a", lanes=2, now=1.0, holds=held)
    for lease in held:
        second.seal("a", lease, 1.0)
    second.seal("b", LeaseId(2, 0), 1.0)
    assert second.driver.is_done
    second.driver.finish(1.0)
    assert [episode.attempt for episode in second.ledger.episodes()] == [0, 0, 0]
    second.ledger.close()


def test_what_a_site_delivers_before_it_has_said_what_it_holds_comes_again(
    tmp_path: Path,
) -> None:
    """An episode may end between a site's greeting and the driver's answer to it."""
    first = Desk(tmp_path / "run", count=2)
    first.join("a", lanes=2)
    sealed, failed = first.leases("a")
    first.ledger.close()
    second = Desk(tmp_path / "run", count=2, again=True)

    def deliver() -> None:
        second.pieces("a", sealed)
        second.seal("a", sealed, files=[FILE])
        second.driver.hear("a", protocol.Returned(*failed, "broke", True, []), 0.0)

    second.hello("a")
    deliver()
    assert second.take(protocol.Settled) == []
    second.say_joined("a", lanes=2, holds=[sealed, failed])
    deliver()
    assert sorted(second.settled("a")) == [sealed, failed]
    (episode,) = second.ledger.episodes()
    assert (second.folder / episode.files[0]).read_bytes() == b"data"
    assert second.leases("a") == [LeaseId(failed.trial, 1)]
    second.ledger.close()


def test_an_episode_that_comes_twice_is_acknowledged_no_sooner(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.join("a")
    (one,) = desk.leases("a")
    with monkeypatch.context() as disk:
        disk.setattr(type(desk.ledger), "committed", 0)
        desk.seal("a", one)
        desk.seal("a", one)
        assert desk.take(protocol.Settled) == []
    assert desk.settled("a") == [one]
    desk.seal("a", one)
    assert desk.settled("a") == [one]


def test_leases_of_the_last_driver_whose_sites_do_not_come_back_are_granted_again(
    tmp_path: Path,
) -> None:
    first = Desk(tmp_path / "run", count=1)
    first.join("a")
    first.ledger.close()
    second = Desk(tmp_path / "run", count=1, again=True)
    second.join("b")
    assert second.leases("b") == []
    second.driver.hear("b", protocol.Began([]), 11.0)
    second.driver.tick(11.0)
    assert second.leases("b") == [LeaseId(0, 1)]
    second.ledger.close()


def test_an_episode_that_the_last_driver_committed_is_only_acknowledged(tmp_path: Path) -> None:
    first = Desk(tmp_path / "run", count=2)
    first.join("a", lanes=2)
    one, other = first.leases("a")
    first.seal("a", one)
    first.ledger.close()
    second = Desk(tmp_path / "run", count=2, again=True)
    second.join("a", lanes=2, holds=[one, other])
    assert second.take(protocol.Settled) == [protocol.Settled([one])]
    second.seal("a", one)
    assert second.settled("a") == [one]
    assert second.driver.late == 0
    second.ledger.close()


def test_a_site_of_another_version_is_refused_in_words(desk: Desk) -> None:
    desk.hello("old", version="0.0.1")
    (refused,) = desk.take(protocol.Refused)
    assert hocket.__version__ in refused.why
    assert "0.0.1" in refused.why
    desk.hello("other", number=99)
    (refused,) = desk.take(protocol.Refused)
    assert "(protocol 99)" in refused.why


def test_a_site_with_other_weights_is_refused_in_words_and_its_leases_are_nobodys(
    desk: Desk,
) -> None:
    desk.join("a")
    desk.join("b", depends_on={**PROGRAM, "files": {"ckpt/model": "abc"}})
    (refused,) = desk.take(protocol.Refused, "b")
    assert "file ckpt/model: missing before, abc now" in refused.why
    assert "--site.mixed" in refused.why
    assert desk.leases("b") == []


def test_a_difference_that_is_allowed_is_written_down_and_lowers_exactness(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "run", mixed=True)
    desk.join("a")
    assert desk.learnt[-1][0] == "bitwise"
    desk.join("b", depends_on={**PROGRAM, "code": {"hocket": {"sha256": "2"}}})
    level, about = desk.learnt[-1]
    assert level == "inputs"
    assert about["differences"] == ["code of hocket: 1 before, 2 now"]
    assert desk.leases("b")


def test_other_hardware_lowers_exactness(desk: Desk) -> None:
    desk.join("a")
    desk.join("b", depends_on={**PROGRAM, "hardware": {"cpu": "another"}})
    assert desk.learnt[-1][0] == "inputs"
    assert desk.leases("b")


@pytest.mark.parametrize(
    "name", ["../escape", "/etc/passwd", "other.txt", ".hidden", "a/states.npz"]
)
def test_a_site_cannot_choose_where_its_files_go(desk: Desk, name: str) -> None:
    desk.join("a")
    (lease,) = desk.leases("a")
    with pytest.raises(WireError):
        desk.pieces("a", lease, name=name)


def test_a_file_that_did_not_arrive_as_it_was_sent_is_refused(desk: Desk) -> None:
    desk.join("a")
    (one,) = desk.leases("a")
    digest = protocol.HASHER(b"data").digest()
    with pytest.raises(WireError, match="did not arrive as it was sent"):
        desk.driver.hear("a", protocol.FilePiece(*one, FILE, 0, b"date", digest), 0.0)
    assert not list(desk.folder.glob(f"episodes/*/*/{FILE}"))


@pytest.mark.parametrize(("rows", "sources"), [([[0] * 14], []), (b"short", []), (b"", [1])])
def test_chunks_that_are_none_are_refused_before_their_episode_counts(
    desk: Desk, rows: Any, sources: Any
) -> None:
    desk.join("a")
    (one,) = desk.leases("a")
    sealed = protocol.SealedEpisode(*one, "success", 5, 1.0, True, False, 1, 0.5, [], rows, sources)
    with pytest.raises(WireError):
        desk.driver.hear("a", protocol.unpack(protocol.pack(sealed)), 0.0)
    assert not desk.driver.is_done
    assert not desk.ledger.episodes()


def test_chunks_come_as_they_were_and_name_no_source_that_there_is_none_of(desk: Desk) -> None:
    desk.join("a", lanes=2)
    chunks = [
        ChunkRow(0, 1, 0.5, 0.6, 0.7, 0.8, 0.9, 3, 8, 7, "policy", 10, 0.25, 0.125),
        ChunkRow(1, 1, source="cache"),
        ChunkRow(2, 1),
    ]
    for one, is_whole in zip(desk.leases("a"), (True, False), strict=True):
        rows, sources = packed_rows(chunks)
        message = protocol.SealedEpisode(
            *one, "success", 5, 1.0, True, False, 3, 0.5, [], rows, sources[: 2 if is_whole else 1]
        )
        desk.driver.hear("a", message, 0.0)
        desk.driver.turn(0.0)
    desk.driver.finish(0.0)
    desk.ledger.close()
    found = [list(row.values())[3:] for row in load_chunks(desk.folder).to_pylist()]
    wanted = [list(dataclasses.astuple(chunk)) for chunk in chunks]
    assert found[:3] == wanted
    wanted[1][10] = None
    assert found[3:] == wanted


def test_chunks_of_sites_are_numbered_over_all_of_them(desk: Desk) -> None:
    desk.join("a")
    desk.join("b")
    for site, at in (("a", 3.0), ("b", 5.0)):
        desk.driver.hear(site, protocol.Beat(0.0, [0, 0, 0, 0, 0.0, 0.0], (0, 0), ""), at)
        (one,) = desk.leases(site)
        desk.seal(site, one, at)
    desk.driver.finish(6.0)
    desk.ledger.close()
    rows = load_chunks(desk.folder).sort_by("lane").to_pylist()
    assert [(row["lane"], row["batch"], row["requested"]) for row in rows] == [
        (0, 1, 3.5),
        (1, 1 | 1 << 24, 5.5),
    ]
    assert [row["executed"] for row in rows] == [None, None]


def test_a_site_may_not_seal_what_it_does_not_have(desk: Desk) -> None:
    desk.join("a")
    (lease,) = desk.leases("a")
    desk.join("b")
    with pytest.raises(WireError, match="does not have"):
        desk.seal("b", lease)
    with pytest.raises(WireError, match="no trial"):
        desk.seal("b", LeaseId(99, 0))
    with pytest.raises(WireError, match="Not all of the files"):
        desk.seal("a", lease, files=[FILE])


def test_an_error_that_every_site_may_have_ends_a_run_only_if_no_site_speaks_against_it(
    desk: Desk,
) -> None:
    desk.join("a")
    desk.driver.hear("a", protocol.Left("EnvError", "broken"), 0.0)
    assert str(desk.driver.trouble) == "name of a: broken"
    assert desk.driver.is_doomed
    desk.join("b", lanes=2)
    desk.seal("b", desk.leases("b")[0])
    assert not desk.driver.is_doomed


def test_a_site_that_leaves_later_is_only_noted(desk: Desk) -> None:
    desk.join("a", lanes=2)
    one, other = desk.leases("a")
    desk.seal("a", one)
    desk.driver.hear("a", protocol.Left("EnvError", "broken"), 0.0)
    desk.join("b")
    assert desk.leases("b") == [LeaseId(other.trial, 1)]


def test_leases_that_were_taken_over_are_no_lost_attempts(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "run", count=1)
    desk.join("a")
    (lease,) = desk.leases("a")
    desk.driver.hear("a", protocol.Returned(*lease, "", spends=False, files=[]), 0.0)
    desk.driver.turn(0.0)
    (again,) = desk.leases("a")
    desk.seal("a", again)
    desk.driver.finish(0.0)
    with LedgerView.open(desk.folder) as ledger:
        assert ledger.failures() == []
        assert ledger.unmade() == 1
        assert ledger.unsettled() == []


def learned(renderer: str, **facts: str) -> protocol.Learned:
    action = ActionSpec(
        size=1, kind="box", shape=(1,), dtype="float32", low=np.zeros(1), high=np.ones(1)
    )
    spec = EnvSpec(
        task=TaskInfo(name="count"),
        action=action,
        observations={},
        cameras=(),
        abilities=(),
        facts={"renderer": renderer, **facts},
    )
    return protocol.Learned("toy:count", spec.to_plain())


def test_another_renderer_is_told_and_lowers_exactness(desk: Desk) -> None:
    desk.join("a", depends_on={**PROGRAM, "settings": {"policy": {"noise": 0.1}}})
    desk.join("b")
    desk.driver.hear("a", learned("llvmpipe"), 0.0)
    desk.driver.hear("b", learned("llvmpipe"), 0.0)
    level, about = desk.learnt[-1]
    assert level == "bitwise"
    assert about["settings"] == {"policy": {"noise": 0.1}}
    desk.driver.hear("b", learned("NVIDIA H200"), 0.0)
    level, about = desk.learnt[-1]
    assert level == "inputs"
    assert about["differences"] == [
        "renderer: NVIDIA H200 at name of b, llvmpipe at name of a",
    ]
