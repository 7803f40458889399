"""An encrypted stream that one thread reads while another writes."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from pathlib import Path

import pytest

from hocket.workers.remote.tls import carry, open_tls
from support.processes import DEADLINE_S
from support.sandboxes import certified

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="apt-get install openssl")
LENGTH = 3 << 20
"""More than what is held for a side that does not take it."""


def test_what_goes_both_ways_at_the_same_time_arrives_whole_and_the_end_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = certified(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted: list[socket.socket] = []

        def accept() -> None:
            plain, _ = listener.accept()
            accepted.append(carry(context.wrap_socket(plain, server_side=True)))

        thread = threading.Thread(target=accept)
        thread.start()
        ours = open_tls("localhost", listener.getsockname()[1], DEADLINE_S)
        thread.join(DEADLINE_S)
    (theirs,) = accepted
    there, back = bytes(range(256)) * (LENGTH // 256), bytes(LENGTH)
    heard: dict[str, bytes] = {}

    def hear(name: str, end: socket.socket) -> None:
        end.settimeout(DEADLINE_S)
        data = bytearray()
        while len(data) < LENGTH and (part := end.recv(1 << 16)):
            data += part
        heard[name] = bytes(data)

    threads = [
        threading.Thread(target=hear, args=("there", theirs)),
        threading.Thread(target=hear, args=("back", ours)),
        threading.Thread(target=theirs.sendall, args=(back,)),
        threading.Thread(target=ours.sendall, args=(there,)),
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join(DEADLINE_S)
    assert heard == {"there": there, "back": back}
    ours.sendall(b"the last")
    ours.close()
    theirs.settimeout(DEADLINE_S)
    assert theirs.recv(100) == b"the last"
    assert theirs.recv(100) == b""
    theirs.close()


def test_a_server_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    context = certified(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            plain, _ = listener.accept()
            with plain, pytest.raises(ssl.SSLError):
                context.wrap_socket(plain, server_side=True)

        thread = threading.Thread(target=accept)
        thread.start()
        with pytest.raises(ssl.SSLCertVerificationError):
            open_tls("localhost", listener.getsockname()[1], DEADLINE_S)
        thread.join(DEADLINE_S)
