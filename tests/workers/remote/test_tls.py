"""A far end behind an entrance that encrypts, as those of clouds are."""

from __future__ import annotations

import asyncio
import queue
import shutil
import socket
import ssl
import threading
from pathlib import Path

import pytest

from hocket.workers.remote.websocket import join, listen
from support.parts import needs
from support.processes import DEADLINE_S
from support.sandboxes import certified, pump
from support.tls_pipe import carry

pytestmark = needs(
    "openssl", is_there=shutil.which("openssl") is not None, how="apt-get install openssl"
)
LENGTH = 3 << 20
"""More than what is held for a side that does not take it."""


def test_what_goes_both_ways_at_the_same_time_arrives_whole_and_the_end_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = certified(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    near, theirs = socket.socketpair()
    inside: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
    done = threading.Event()
    entering: list[threading.Thread] = []

    def use(stream: socket.socket) -> None:
        inside.put(stream)
        done.wait(DEADLINE_S)

    with socket.create_server(("127.0.0.1", 0)) as entrance:

        def on_port(port: int) -> None:
            entering.append(threading.Thread(target=enter, args=(port,)))
            entering[0].start()

        def enter(port: int) -> None:
            plain, _ = entrance.accept()
            with (
                carry(context.wrap_socket(plain, server_side=True)) as outer,
                socket.create_connection(("127.0.0.1", port)) as inner,
            ):
                back = threading.Thread(target=pump, args=(inner, outer), daemon=True)
                back.start()
                pump(outer, inner)
                back.join(DEADLINE_S)

        listening = threading.Thread(
            target=asyncio.run, args=(listen("key", "127.0.0.1", 0, use, on_port),)
        )
        listening.start()
        join(f"wss://localhost:{entrance.getsockname()[1]}", "key", theirs)
        far = inside.get(timeout=DEADLINE_S)
        there, back = bytes(range(256)) * (LENGTH // 256), bytes(LENGTH)
        heard: dict[str, bytes] = {}

        def hear(name: str, end: socket.socket) -> None:
            end.settimeout(DEADLINE_S)
            data = bytearray()
            while len(data) < LENGTH and (part := end.recv(1 << 16)):
                data += part
            heard[name] = bytes(data)

        threads = [
            threading.Thread(target=hear, args=("there", far)),
            threading.Thread(target=hear, args=("back", near)),
            threading.Thread(target=far.sendall, args=(back,)),
            threading.Thread(target=near.sendall, args=(there,)),
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join(DEADLINE_S)
        assert heard == {"there": there, "back": back}
        near.sendall(b"the last")
        near.close()
        far.settimeout(DEADLINE_S)
        assert far.recv(100) == b"the last"
        assert far.recv(100) == b""
        far.close()
        done.set()
        for one in (listening, *entering):
            one.join(DEADLINE_S)
            assert not one.is_alive()


def test_a_server_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    context = certified(tmp_path)
    near, other = socket.socketpair()
    with near, other, socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            plain, _ = listener.accept()
            with plain, pytest.raises(ssl.SSLError):
                context.wrap_socket(plain, server_side=True)

        thread = threading.Thread(target=accept)
        thread.start()
        with pytest.raises(ssl.SSLCertVerificationError):
            join(f"wss://localhost:{listener.getsockname()[1]}", "key", near)
        thread.join(DEADLINE_S)
