"""What a worker in a container or elsewhere may not do: it is lost, and nothing else is."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.core.contracts.link import Link
from hocket.core.contracts.recorder import EVIDENCE
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Ref, Trial
from hocket.core.frames import pack
from hocket.core.wire import (
    MAX_PIECE,
    Begin,
    Close,
    Described,
    Execute,
    Executed,
    Failed,
    Hello,
    Message,
    Open,
    Piece,
    Progress,
    Ready,
    Sealed,
)
from hocket.errors import WorkerFailed
from hocket.workers.links.files import LeftFolder
from hocket.workers.links.guard import Guard
from hocket.workers.local.process_link import ProcessLink
from hocket.workers.remote.link import GREETING, RemoteLink
from hocket.workers.shm import Control, create_file

LAYOUT = [("observation/state", [2], "<f8", 0)]
READY = Ready([0], [0], [""], None, LAYOUT, -1, np.arange(8.0).tobytes(), 0.0, 0.0)
EXECUTED = Executed([0], [0], [0], [2], bytes(16), [0], [0.1], [0.0], bytes(64))
ENDED = EXECUTED._replace(ends=[1], arrays=None)


class Far:
    """The far end of a link, played by hand."""

    def __init__(self, folder: Path) -> None:
        self.spec = WorkerSpec(
            suites={"toy": Ref(name="toy")}, sinks=(Ref(name="steps"),), folder=str(folder)
        )
        ours, self.stream = socket.socketpair()
        self.link = RemoteLink(ours, self.spec, lambda: None, lambda: "It is gone.")
        self.stream.sendall(GREETING)

    def pour(self, *messages: Message) -> None:
        """Send more than a socket holds while somebody reads."""
        data = b"".join(map(pack, messages))
        thread = threading.Thread(target=self._pour, args=(data,), daemon=True)
        thread.start()

    def _pour(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # The link may be lost before all is sent.
            self.stream.sendall(data)

    def say(self, *messages: Message) -> list[Message]:
        for message in messages:
            self.stream.sendall(pack(message))
        return self.link.receive()

    def asked(self) -> None:
        """Bring the lane to where it executes a chunk of two actions."""
        begin = Begin([0], [0], [("toy", "count", 7, 0)], [0], False, [{}])
        self.link.send(begin)
        self.say(READY)
        self.link.send(Execute([0], [0], [0], [2], bytes(64), ()))


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Far]:
    made = Far(tmp_path / "run")
    yield made
    made.link.kill()
    made.stream.close()


def refused(far: Far, *messages: Message) -> str:
    with pytest.raises(WorkerFailed) as caught:
        far.say(*messages)
    return str(caught.value)


def read_on(link: Link) -> None:
    while True:
        link.receive()


def test_answers_to_what_was_asked_are_let_through(far: Far) -> None:
    far.asked()
    assert far.say(Progress([2]), EXECUTED) == [EXECUTED]
    assert far.link.steps(0) == 2
    assert far.link.arrays(0)["observation/state"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "message",
    [
        EXECUTED._replace(lanes=[1]),
        EXECUTED._replace(lanes=[-1]),
        EXECUTED._replace(lanes=["0"]),
        EXECUTED._replace(attempts=[1]),
        EXECUTED._replace(chunks=[1]),
        EXECUTED._replace(steps=[3], rewards=bytes(24)),
        EXECUTED._replace(steps=[-1]),
        EXECUTED._replace(rewards=bytes(8)),
        EXECUTED._replace(rewards=None),
        EXECUTED._replace(busy_s=["long"]),
        EXECUTED._replace(lanes=[0, 0]),
        EXECUTED._replace(arrays=bytes(9)),
        EXECUTED._replace(ends=None),
        READY,
        Sealed(0, 0, []),
        Failed(0, 5, "Error", "", ""),
        Failed(7, 0, "Error", "", ""),
        Failed(0, 0, 1, None, ""),
        Described("toy", []),
        Progress([1, 2, 3]),
        Progress(["many"]),
        Begin([0], [0], [("toy", "count", 7, 0)], [0], False, [{}]),
        Close(),
    ],
    ids=repr,
)
def test_what_answers_nothing_loses_the_worker(far: Far, message: Any) -> None:
    far.asked()
    assert "said what no worker says" in refused(far, message)


def test_a_second_hello_and_a_second_answer_lose_the_worker(far: Far) -> None:
    hello = Hello(1, "python", "3.11", "inline")
    assert far.say(hello) == [hello]
    assert "Hello" in refused(far, hello)


@pytest.mark.parametrize(
    "layout",
    [
        [("observation/state", [2], "<f8", -8)],
        [("observation/state", [2], "<f8", 56)],
        [("observation/state", [-2], "<f8", 0)],
        [("observation/state", [1 << 40], "<f8", 0)],
        [("observation/state", [1], "O", 0)],
        [("observation/state", [1], "no type", 0)],
        [("observation/state", "x", "<f8", 0)],
        "nonsense",
    ],
    ids=repr,
)
def test_arrays_outside_of_their_memory_lose_the_worker(far: Far, layout: Any) -> None:
    far.link.send(Begin([0], [0], [("toy", "count", 7, 0)], [0], False, [{}]))
    refused(far, READY._replace(layout=layout))


def test_a_frame_that_claims_too_much_loses_the_worker_at_once(far: Far) -> None:
    far.stream.sendall(struct.pack("<I", (1 << 28) + 1) + b"begin")
    assert "claims" in refused(far)


def test_bytes_that_are_no_message_lose_the_worker(far: Far) -> None:
    for body in (b"\xc1", b"\x91\xcc\xff", b"\x93" * 3000):
        made = Far(Path("unused"))
        made.stream.sendall(struct.pack("<I", len(body)) + body)
        refused(made)
        made.link.kill()
        made.stream.close()


def test_a_stream_that_is_cut_in_mid_frame_gives_no_message(far: Far) -> None:
    far.asked()
    far.stream.sendall(pack(EXECUTED)[:-3])
    assert far.link.receive() == []
    far.stream.close()
    with pytest.raises(WorkerFailed, match=r"It is gone\."):
        far.link.receive()


def test_whoever_does_not_greet_is_no_worker(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    spec = WorkerSpec(suites={"toy": Ref(name="toy")})
    link = RemoteLink(ours, spec, lambda: None, lambda: "It is gone.")
    theirs.sendall(b"Welcome to this machine!\n" + GREETING + pack(Progress([4])))
    assert link.receive() == []
    assert link.steps(0) == 4
    link.kill()
    theirs.close()
    ours, theirs = socket.socketpair()
    link = RemoteLink(ours, spec, lambda: None, lambda: "It is gone.")
    theirs.sendall(b"GET / HTTP/1.1\r\n" * 5000)
    with pytest.raises(WorkerFailed, match="no worker of hocket's"):
        read_on(link)
    link.kill()
    theirs.close()


# -- Files -----------------------------------------------------------------------------------


def piece(data: bytes = b"numbers", **changes: Any) -> Piece:
    whole = Piece(0, 0, "steps.rows", 0, data, hashlib.sha256(data).digest())
    return whole._replace(**changes)


def test_a_file_lies_in_the_attempts_folder_once_it_is_whole(far: Far, tmp_path: Path) -> None:
    far.asked()
    far.say(ENDED)
    data = os.urandom(MAX_PIECE + 5)
    digest = hashlib.sha256(data).digest()
    folder = tmp_path / "run" / "episodes" / "toy-count-7" / "0"
    first = piece(data[:MAX_PIECE], digest=b"")
    far.pour(first)
    while not folder.exists():
        far.link.receive()
    assert not (folder / "steps.rows").exists()
    far.stream.sendall(pack(piece(data[MAX_PIECE:], begin=MAX_PIECE, digest=digest)))
    far.stream.sendall(pack(Sealed(0, 0, ["anywhere/steps.rows"])))
    answers: list[Message] = []
    while not answers:
        answers = far.link.receive()
    assert answers == [Sealed(0, 0, ["episodes/toy-count-7/0/steps.rows"])]
    assert (folder / "steps.rows").read_bytes() == data


@pytest.mark.parametrize(
    "name",
    [
        "../steps.rows",
        "/etc/passwd",
        "a/steps.rows",
        "..",
        ".",
        "",
        ".steps.rows.tmp",
        "ledger.sqlite",
        "steps.rows\0",
        "steps\n.rows",
        "x" * 300,
        7,
        None,
        b"steps.rows",
    ],
)
def test_a_file_by_a_name_that_no_recorder_declared_loses_the_worker(
    far: Far, tmp_path: Path, name: Any
) -> None:
    far.asked()
    far.say(ENDED)
    refused(far, piece(name=name))
    far.link.kill()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(lane=1)],
        [piece(attempt=1)],
        [piece(begin=1)],
        [piece(digest=b"wrong")],
        [piece(digest=b""), piece(begin=0)],
        [piece(digest=b""), piece(name="states.npz")],
        [piece(), piece()],
        [piece(bytes(MAX_PIECE + 1))],
        [piece()._replace(data="text")],
        [piece(digest=b""), Sealed(0, 0, ["steps.rows"])],
        [Sealed(0, 0, ["steps.rows"])],
        [piece(), Sealed(0, 0, [])],
        [piece(), Sealed(0, 0, ["steps.rows", "states.npz"])],
        [piece(), Sealed(0, 0, [7])],
    ],
    ids=lambda some: repr(some)[:60],
)
def test_pieces_that_make_no_file_lose_the_worker_and_leave_nothing(
    far: Far, tmp_path: Path, pieces: list[Any]
) -> None:
    far.asked()
    far.say(ENDED)
    far.pour(*pieces)
    with pytest.raises(WorkerFailed, match="said what no worker says"):
        read_on(far.link)
    far.link.kill()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_files_before_the_end_of_an_episode_lose_the_worker(far: Far) -> None:
    far.asked()
    refused(far, piece())


def test_more_bytes_than_the_quota_lose_the_worker(tmp_path: Path) -> None:
    spec = WorkerSpec(
        suites={"toy": Ref(name="toy")}, sinks=(Ref(name="steps"),), folder=str(tmp_path)
    )
    guard = Guard(spec, quota=10)
    guard.ask(Begin([0], [0], [("toy", "count", 7, 0)], [0], False, [{}]))
    guard.admit([READY])
    guard.ask(Execute([0], [0], [0], [2], bytes(64), ()))
    guard.admit([ENDED, piece(b"12345678", digest=b"")])
    with pytest.raises(Exception, match="larger than they may be"):
        guard.admit([piece(b"abc", begin=8)])
    guard.close()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_worker_is_told_no_path_of_this_machine(tmp_path: Path) -> None:
    spec = WorkerSpec(suites={"toy": Ref(name="toy")}, folder=str(tmp_path))
    guard = Guard(spec)
    trial = ("toy", "count", 7, 0)
    record = [{"folder": str(tmp_path), "video": True}]
    begun = guard.ask(Begin([0], [0], [trial], [0], False, record))
    assert str(tmp_path) not in repr(begun)
    assert begun.record == [{"video": True}]  # type: ignore[union-attr]


def test_of_a_dead_worker_only_plain_files_with_the_names_of_sinks_are_kept(tmp_path: Path) -> None:
    trial, root, left = ("toy", "count", 7, 0), tmp_path / "run", tmp_path / "left"
    secret = tmp_path / "secret"
    secret.write_bytes(b"of this machine")
    spec = WorkerSpec(suites={"toy": Ref(name="toy")}, sinks=(Ref(name="states"),))
    guard = Guard(spec, left=LeftFolder(str(left), "/inside"))
    assert guard.ask(Open(spec.to_plain())).spec["folder"] == "/inside"  # type: ignore[union-attr]
    record = [{"folder": str(root), EVIDENCE: True}]
    guard.ask(Begin([0], [3], [trial], [0], False, record))
    slug = Trial(*trial).slug
    place = left / "hocket-files-1" / "episodes" / slug / "3"
    place.mkdir(parents=True)
    (place / ".states.npz.spill.tmp").write_bytes(b"states")
    (place / "states.npz").symlink_to(secret)
    os.mkfifo(place / "pipe")
    (place / "zzz.sh").write_bytes(b"not a sink's")
    guard.close()
    (kept,) = [path for path in root.rglob("*") if path.is_file()]
    assert kept == root / "episodes" / slug / "3" / ".states.npz.spill.tmp"
    assert kept.read_bytes() == b"states"


def test_a_folder_behind_a_link_is_not_entered(tmp_path: Path) -> None:
    trial, root, left = ("toy", "count", 7, 0), tmp_path / "run", tmp_path / "left"
    spec = WorkerSpec(suites={"toy": Ref(name="toy")}, sinks=(Ref(name="states"),))
    guard = Guard(spec, left=LeftFolder(str(left), "/inside"))
    guard.ask(Begin([0], [0], [trial], [0], False, [{"folder": str(root), EVIDENCE: True}]))
    elsewhere = tmp_path / "elsewhere" / "episodes" / Trial(*trial).slug / "0"
    elsewhere.mkdir(parents=True)
    (elsewhere / "states.npz").write_bytes(b"of this machine")
    left.mkdir()
    (left / "hocket-files-1").symlink_to(tmp_path / "elsewhere")
    guard.close()
    assert not root.exists()


# -- Descriptors -----------------------------------------------------------------------------


HAS_SEALS = hasattr(os, "memfd_create")
"""Without them (macOS) memory is taken from workers of this machine alone, which are trusted."""


def unsealed() -> int:
    if not HAS_SEALS:
        pytest.skip("macOS has no memory without a file")
    fd = os.memfd_create("hocket-arrays", os.MFD_CLOEXEC)
    os.ftruncate(fd, 4096)
    return fd


def on_disk() -> int:
    return os.open(sys.executable, os.O_RDONLY)


@pytest.mark.parametrize("make", [unsealed, on_disk])
def test_a_descriptor_without_seals_is_not_mapped(make: Callable[[], int]) -> None:
    fd = make()  # first: where there is none, nothing is left open
    spec = WorkerSpec(suites={"toy": Ref(name="toy")})
    ours, theirs = socket.socketpair()
    control = Control(bytearray(Control.size(1)))
    log = create_file("hocket-log", 0)
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    link = ProcessLink(ours, control, log, spec, nothing, nothing, lambda: "", Guard(spec))
    link.send(Begin([0], [0], [("toy", "count", 7, 0)], [0], False, [{}]))
    socket.send_fds(theirs, [pack(READY._replace(block=0, arrays=None))], [fd])
    os.close(fd)
    with pytest.raises(WorkerFailed, match="not sealed against shrinking"):
        link.receive()
    link.kill()
    theirs.close()


def test_descriptors_without_end_lose_the_worker() -> None:
    spec = WorkerSpec(suites={"toy": Ref(name="toy")})
    ours, theirs = socket.socketpair()
    control = Control(bytearray(Control.size(1)))
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    log = create_file("hocket-log", 0)
    link = ProcessLink(ours, control, log, spec, nothing, nothing, lambda: "", Guard(spec))
    link.send(Begin([0], [0], [("toy", "count", 7, 0)], [0], False, [{}]))
    before = len(os.listdir("/dev/fd"))
    for _ in range(10):
        socket.send_fds(theirs, [b"\0"], [theirs.fileno()] * 3)
    with pytest.raises(WorkerFailed, match="more descriptors"):
        read_on(link)
    link.kill()
    theirs.close()
    assert len(os.listdir("/dev/fd")) <= before


@pytest.mark.skipif(not HAS_SEALS, reason="macOS cannot keep a file from being made shorter")
def test_our_own_memory_cannot_be_made_shorter() -> None:
    from hocket.workers.shm import create_block, map_sealed

    fd = create_block("hocket-arrays", 4096)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 10)
    map_sealed(fd).close()
    os.close(fd)
