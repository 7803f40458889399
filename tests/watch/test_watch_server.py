"""The server of the page: who may ask for what, and what pages are told."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from hocket.cli import watch
from hocket.core.data import Outcome, Trial
from hocket.errors import ConfigError, UsageError
from hocket.records.folder import RunFolder
from hocket.records.labels import load_labels
from hocket.records.ledger.ledger import Ledger
from hocket.watch.guard import Admission, names_of, read_key
from hocket.watch.run_view import RunView
from support.processes import DEADLINE_S
from support.recorded_runs import FAILURE, SUCCESS, plan, play, record_run
from support.watched import TOKEN, get, joined, served

TRIALS = plan(["push", "reach"], 4)


def outcome(trial: Trial) -> Outcome:
    return FAILURE if trial.seed == 1 else SUCCESS


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return record_run(tmp_path / "runs" / "mine", TRIALS, outcome, ended=4)


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    with served(run) as found:
        yield found


def film_of(run: Path, cell: int, name: str = "front.mp4", data: bytes = b"0123456789") -> Path:
    folder = RunFolder.at(run).attempt(TRIALS[cell], 0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    return folder / name


def test_a_page_is_served_with_all_it_needs_and_runs_no_script_of_others(address: str) -> None:
    page = get(address)
    assert page.status == 200
    needed = re.findall(r'(?:href|src)="(/[^"]+)"', page.body.decode())
    assert len(needed) == 2
    for path in needed:
        assert get(address, path).status == 200, path
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert page.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/", "/wrong/", f"/{TOKEN}x/", f"/{TOKEN[:-1]}/", "/page.js"])
def test_nothing_is_served_without_the_token(address: str, path: str) -> None:
    assert get(address, path).status == 404


def test_a_name_that_leads_here_is_not_enough(address: str) -> None:
    assert get(address, Host="evil.example:80").status == 403
    assert get(address, Host="localhost:1234").status == 200  # through a tunnel
    assert get(address, Origin="http://evil.example").status == 403


def test_pages_of_others_cannot_follow_a_run(address: str) -> None:
    with (
        pytest.raises(InvalidStatus, match="403"),
        joined(address, origin="http://evil.example"),
    ):
        pass


@pytest.mark.parametrize(
    "path",
    [
        "film//0/0/../../../run.yaml",
        "film//0/0/%2e%2e%2f%2e%2e%2frun.yaml",
        "film//0/0/.front.mp4.tmp",
        "film//99/0/front.mp4",
        "film//0/x/front.mp4",
        "film/../0/0/front.mp4",
        "run.yaml",
        "ledger.sqlite",
        "../page.js",
        "page/../../server.py",
    ],
)
def test_no_path_leads_to_another_file(run: Path, address: str, path: str) -> None:
    film_of(run, 0)
    film_of(run, 0, ".front.mp4.tmp")
    assert get(address, path).status == 404


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("film//0/0/front.mp4?from=" + "9" * 5000, {}),
        ("film//0/0/front.mp4", {"Range": f"bytes={'9' * 5000}-"}),
        ("film//0/0/front.mp4", {"Range": f"bytes=-{'9' * 5000}"}),
    ],
    ids=["digits", "from", "last"],
)
def test_numbers_of_any_length_are_answered_in_words(
    run: Path, address: str, path: str, headers: dict[str, str]
) -> None:
    film_of(run, 0)
    with joined(address) as page:
        page.until("snapshot")
        found = get(address, path, **headers)
        assert (found.status, found.body) == (400, b"This means nothing.\n")
        assert get(address, path.partition("?")[0]).status == 200


@pytest.mark.parametrize(
    "message",
    ["[" * 10_000, '{"episode": Infinity}', '{"look": [1e400]}', '{"look": [' + "9" * 5000 + "]}"],
    ids=["deep", "infinity", "overflow", "digits"],
)
def test_a_message_that_means_nothing_ends_no_page(address: str, message: str) -> None:
    with joined(address) as page:
        page.socket.send(message)
        assert page.until("refused")["text"] == "This means nothing."
        page.say(episode=0)
        page.until("episode")


def test_a_link_does_not_lead_out_of_the_folder(run: Path, address: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    film = film_of(run, 0)
    film.with_name("link.mp4").symlink_to(tmp_path / "secret")
    with joined(address) as page:
        page.until("snapshot")
        assert get(address, "film//0/0/link.mp4").status == 404
        assert get(address, "film//0/0/front.mp4").status == 200


@pytest.mark.parametrize(
    ("asked", "status", "body"),
    [
        ("bytes=2-4", 206, b"234"),
        ("bytes=7-", 206, b"789"),
        ("bytes=-3", 206, b"789"),
        ("bytes=0-99", 206, b"0123456789"),
        ("bytes=10-", 416, b""),
        ("bytes=5-2", 416, b""),
        ("lines=1-2", 416, b""),
    ],
)
def test_videos_are_served_by_ranges(
    run: Path, address: str, asked: str, status: int, body: bytes
) -> None:
    film_of(run, 1)
    with joined(address) as page:
        page.until("snapshot")
        found = get(address, "film//1/0/front.mp4", Range=asked)
    assert (found.status, found.body) == (status, body)
    if status == 206:
        assert found.headers["Content-Range"].endswith("/10")


def test_a_video_that_grows_is_served_on_and_says_when_it_has_its_name(
    run: Path, address: str
) -> None:
    growing = film_of(run, 5, ".front.mp4.tmp", b"abc")
    with joined(address) as page:
        page.until("snapshot")
        page.say(episode=5)
        assert page.until("episode")["growing"] == ["front.mp4"]
        where = "film//5/0/front.mp4?from="
        assert get(address, f"{where}0").body == b"abc"
        assert get(address, f"{where}3").status == 204
        growing.write_bytes(b"abcdef")
        assert get(address, f"{where}3").body == b"def"
        growing.rename(growing.with_name("front.mp4"))
        assert get(address, f"{where}6").status == 205
        assert get(address, "film//5/0/front.mp4").body == b"abcdef"


def test_a_page_gets_a_snapshot_and_then_what_changes(run: Path, address: str) -> None:
    with joined(address) as page, joined(address) as other:
        first = page.until("snapshot")
        assert (first["outcomes"], first["plan"]["first"]) == ("SSFF....", 0)
        assert first["head"]["rate"]["value"] == 0.5
        assert [item["cell"] for item in first["feed"]] == [2, 3]
        with Ledger.open(run) as ledger:
            play(ledger, TRIALS[4:6], outcome, 2)
        for one in (page, other):
            change = one.until("change", "cells")
            assert change["cells"] == {"S": [4, 5]}
            assert change["rates"]["0"]["n"] == 3


def test_a_label_sticks_and_every_page_sees_it(run: Path, address: str) -> None:
    with joined(address) as page, joined(address) as other:
        page.until("snapshot")
        other.until("snapshot")
        page.say(cell=2, label="  dropped ")
        assert other.until("change", "labels")["labels"] == {"2": "dropped"}
        assert load_labels(run)[TRIALS[2].id] == "dropped"
        page.say(cell=7, label="missed")
        assert "has not ended" in page.until("refused")["text"]
        page.say(cell=2, label="")
        assert other.until("change", "labels")["labels"] == {}
    assert load_labels(run) == {}


@pytest.mark.parametrize(
    "message", ["no JSON", "[]", '{"episode": "x"}', '{"look": 3}', '{"cell": 1, "label": null}']
)
def test_what_means_nothing_is_refused_and_the_page_goes_on(address: str, message: str) -> None:
    with joined(address) as page:
        page.until("snapshot")
        page.socket.send(message)
        page.say(episode=0)
        assert page.until("episode")["trial"] == TRIALS[0].id


def test_borders_of_chunks_and_films_are_told_with_an_episode(run: Path, address: str) -> None:
    film_of(run, 2)
    with joined(address) as page:
        page.until("snapshot")
        page.say(episode=2)
        found = page.until("episode")
        page.say(inside=2, attempt=0)
        inside = page.until("inside")
    assert (found["outcome"], found["films"]) == ("F", ["front.mp4"])
    assert inside["key"] == "2-0"
    assert inside["look"]["times"]["steps"] == [8, 8]


def test_a_folder_lists_its_runs_and_leads_to_each(run: Path, tmp_path: Path) -> None:
    record_run(tmp_path / "runs" / "jobs" / "b", TRIALS, outcome)
    elsewhere = record_run(tmp_path / "elsewhere", TRIALS, outcome)
    (tmp_path / "runs" / "link").symlink_to(elsewhere)
    with served(tmp_path / "runs") as address, joined(address) as page:
        listed = {one["name"]: one for one in page.until("runs")["runs"]}
        assert listed.keys() == {"mine", "jobs/b"}
        assert (listed["mine"]["done"], listed["mine"]["planned"]) == (4, 8)
        assert listed["jobs/b"]["rate"]["value"] == 0.75
        with joined(address, "jobs/b") as one:
            assert one.until("snapshot")["outcomes"] == "SSFFSSSS"
        with joined(address, "link") as one:
            assert "no run" in one.until("error")["text"]


def test_a_run_is_closed_once_nobody_reads_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poll, close, did = RunView.poll, RunView.close, list[str]()
    reads, may_go_on = threading.Event(), threading.Event()

    def slow_poll(view: RunView) -> Any:
        reads.set()
        may_go_on.wait(DEADLINE_S)
        found = poll(view)
        did.append("read")
        return found

    def told_close(view: RunView) -> None:
        did.append("closed")
        close(view)

    monkeypatch.setattr(RunView, "poll", slow_poll)
    monkeypatch.setattr(RunView, "close", told_close)
    with served(run) as address:
        get(address, "film//0/0/front.mp4")
        assert reads.wait(DEADLINE_S)
        threading.Timer(0.2, may_go_on.set).start()
    assert did == ["read", "closed"]


def test_a_run_that_has_not_begun_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    with served(folder, is_one_run=True) as address, joined(address) as page:
        assert "plan" not in page.until("snapshot")
        record_run(folder, TRIALS, outcome)
        assert page.until("snapshot", "plan")["outcomes"] == "SSFFSSSS"


def test_beyond_loopback_a_key_or_tls_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--key-file or a --tls-cert"):
        watch.run([str(tmp_path), "--host", "0.0.0.0"])
    file = tmp_path / "key"
    file.write_text("short\n")
    with pytest.raises(ConfigError, match="16 letters"):
        read_key(str(file))
    file.write_text("# mine\nlong-enough-for-an-address\n")
    assert read_key(str(file)) == "long-enough-for-an-address"


def test_a_host_that_was_named_is_known_and_no_other() -> None:
    guard = Admission(token="t", hosts=("box.lab",), scheme="https")
    assert guard.knows_host("box.lab:80")
    assert not guard.knows_host("box.lab.evil.example")
    assert guard.knows_host("10.0.0.7:8123"), "an address cannot be made to lead here"
    assert not Admission(token="t").knows_host("10.0.0.7:8123")
    assert names_of("box.lab") == ("box.lab",)
    assert socket.gethostname() in names_of("0.0.0.0")
    assert names_of("127.0.0.1") == ()
    assert not guard.knows_host(None)
    assert guard.knows_origin("https://box.lab:80", "box.lab:80")
    assert not guard.knows_origin("http://box.lab:80", "box.lab:80")
    assert not guard.knows_origin("null", "box.lab:80")
