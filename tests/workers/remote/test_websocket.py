"""A far end behind a WebSocket: one connection in its life, from whoever has the key."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from hocket.errors import WorkerFailed
from hocket.testing import check_runtime
from hocket.workers.remote.loopback import LoopbackRuntime
from hocket.workers.remote.websocket import KEY_HEADER, MAX_MESSAGE, join, listen
from support.processes import DEADLINE_S

KEY = "the right key"


def dial(url: str, key: str) -> socket.socket:
    """A socket that leads to a far end."""
    ours, theirs = socket.socketpair()
    ours.settimeout(DEADLINE_S)
    try:
        join(url, key, theirs)
    except BaseException:
        ours.close()
        theirs.close()
        raise
    return ours


class FarEnd:
    """Listens in a thread, and says back what it hears."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.uses = 0
        ports: queue.Queue[int] = queue.Queue()
        self.thread = threading.Thread(
            target=asyncio.run,
            args=(listen(KEY, "127.0.0.1", 0, self.use, ports.put, DEADLINE_S),),
        )
        self.thread.start()
        self.url = f"ws://127.0.0.1:{ports.get(timeout=DEADLINE_S)}"

    def use(self, stream: socket.socket) -> None:
        self.uses += 1
        while data := stream.recv(1 << 16):
            self.heard.append(data)
            stream.sendall(data)


@pytest.fixture
def far() -> Iterator[FarEnd]:
    made = FarEnd()
    yield made
    if not made.uses:
        # Who was admitted may not have been heard yet: then nobody else is.
        with contextlib.suppress(WorkerFailed, OSError):
            dial(made.url, KEY).close()
    made.thread.join(DEADLINE_S)
    assert not made.thread.is_alive()


def test_bytes_go_both_ways_and_the_end_is_seen(far: FarEnd) -> None:
    stream = dial(far.url, KEY)
    stream.sendall(b"there")
    assert stream.recv(1 << 16) == b"there"
    stream.close()
    far.thread.join(DEADLINE_S)
    assert not far.thread.is_alive()  # It does not wait for another.
    with pytest.raises(OSError):  # noqa: PT011 - nobody listens, in whatever words
        dial(far.url, KEY)


@pytest.mark.parametrize("headers", [{}, {KEY_HEADER: "wrong"}, {KEY_HEADER: ""}])
def test_whoever_has_no_key_or_a_wrong_one_is_refused_and_takes_nothing(
    far: FarEnd, headers: dict[str, str]
) -> None:
    for _ in range(3):
        with (
            pytest.raises(Exception, match="401"),
            connect(far.url, additional_headers=headers) as ours,
        ):
            ours.send(b"let me in")
    assert far.uses == 0
    with pytest.raises(WorkerFailed, match=r"refused the connection \(401\)"):
        dial(far.url, "wrong")
    stream = dial(far.url, KEY)
    stream.sendall(b"mine")
    assert stream.recv(1 << 16) == b"mine"
    stream.close()
    assert far.heard == [b"mine"]


def test_a_second_connection_with_the_right_key_is_refused_and_never_mixed(far: FarEnd) -> None:
    first = dial(far.url, KEY)
    with pytest.raises(WorkerFailed, match=r"refused the connection \(409\)"):
        dial(far.url, KEY)
    first.sendall(b"still mine")
    assert first.recv(1 << 16) == b"still mine"
    first.close()
    assert far.uses == 1


@pytest.mark.parametrize("message", [bytes(MAX_MESSAGE + 1), "text"], ids=["too long", "text"])
def test_what_is_no_stream_of_bytes_ends_the_connection(far: FarEnd, message: bytes | str) -> None:
    with connect(far.url, additional_headers={KEY_HEADER: KEY}, compression=None) as ours:
        with contextlib.suppress(ConnectionClosed):  # It may end before all of it was sent.
            ours.send(message)
        with pytest.raises(ConnectionClosed):
            ours.recv(timeout=DEADLINE_S)
    assert far.heard == []


def test_a_far_end_that_sends_too_much_at_once_is_lost() -> None:
    from websockets.sync.server import serve

    with serve(lambda c: c.send(bytes(MAX_MESSAGE + 1)), "127.0.0.1", 0, compression=None) as bad:
        thread = threading.Thread(target=bad.serve_forever)
        thread.start()
        stream = dial(f"ws://127.0.0.1:{bad.socket.getsockname()[1]}", KEY)
        assert stream.recv(1 << 16) == b""
        stream.close()
        bad.shutdown()
        thread.join(DEADLINE_S)


def test_what_is_no_websocket_is_no_worker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            stream, _ = server.accept()
            with stream:
                stream.recv(1 << 16)
                stream.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises((WorkerFailed, OSError)):
            dial(f"ws://127.0.0.1:{server.getsockname()[1]}", KEY)
        thread.join(DEADLINE_S)


def test_a_redirection_is_not_followed_with_the_key(far: FarEnd) -> None:
    from websockets.sync.server import ServerConnection, serve

    def redirect(connection: ServerConnection, _: object) -> object:
        response = connection.respond(302, "")
        response.headers["Location"] = far.url
        return response

    with serve(lambda _: None, "127.0.0.1", 0, process_request=redirect) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with pytest.raises(WorkerFailed):
            dial(f"ws://127.0.0.1:{server.socket.getsockname()[1]}", KEY)
        server.shutdown()
        thread.join(DEADLINE_S)
    assert far.uses == 0


def test_what_both_ends_send_at_the_same_time_arrives_whole_and_the_end_after_it(
    far: FarEnd,
) -> None:
    """More than fits on the way, while nobody takes what comes back."""
    ours, theirs = socket.socketpair()
    join(far.url, KEY, theirs)
    sent, heard = bytes(range(256)) * (8 << 12), bytearray()
    thread = threading.Thread(target=ours.sendall, args=(sent,))
    thread.start()
    time.sleep(0.05)  # Both directions fill up; nothing depends on how far.
    ours.settimeout(DEADLINE_S)
    while len(heard) < len(sent):
        heard += ours.recv(1 << 20)
    thread.join(DEADLINE_S)
    assert heard == sent
    ours.shutdown(socket.SHUT_WR)
    assert ours.recv(1) == b""
    ours.close()


def test_a_ping_is_answered_and_is_no_part_of_the_stream(far: FarEnd) -> None:
    with connect(far.url, additional_headers={KEY_HEADER: KEY}, compression=None) as ours:
        assert ours.ping().wait(DEADLINE_S)
        ours.send([b"in ", b"parts"])
        said = b""
        while len(said) < len(b"in parts"):
            said += ours.recv(timeout=DEADLINE_S)
    assert said == b"in parts"


@pytest.mark.slow
def test_workers_behind_a_websocket_keep_every_rule_of_a_runtime() -> None:
    check_runtime(LoopbackRuntime)
