"""Key files: what they hold, who can read them, and whom they trust."""

from __future__ import annotations

import contextlib
import queue
import socket
import stat
import threading
from pathlib import Path

import pytest

from hocket.cli import work
from hocket.errors import ConfigError, HocketError, UsageError
from hocket.machines.credentials import Credentials, DriverSecrets
from hocket.machines.site.link import DriverLink
from hocket.machines.site.site import Site
from support.processes import DEADLINE_S


def test_a_key_file_holds_the_key_and_the_certificate_and_no_private_key(tmp_path: Path) -> None:
    secrets = DriverSecrets.new(encrypted=True)
    secrets.credentials.save(tmp_path / "site.key")
    text = (tmp_path / "site.key").read_text()
    assert "PRIVATE" not in text
    assert stat.S_IMODE((tmp_path / "site.key").stat().st_mode) == 0o600
    found = Credentials.parse(text, "the file")
    assert found == secrets.credentials
    assert secrets.server_context() is not None
    assert found.client_context().get_ca_certs()


def test_a_driver_that_goes_on_is_the_one_that_sites_know(tmp_path: Path) -> None:
    secrets = DriverSecrets.new(encrypted=True, port=7000)
    secrets.save(tmp_path / ".driver")
    assert DriverSecrets.load(tmp_path / ".driver") == secrets
    assert DriverSecrets.load(tmp_path / "nothing") is None
    (tmp_path / ".driver").write_text("damaged")
    assert DriverSecrets.load(tmp_path / ".driver") is None


@pytest.mark.parametrize("text", ["", "# only a comment\n", "two words\n", "one\ntwo\n"])
def test_what_is_no_key_file_is_refused_without_saying_what_stands_there(text: str) -> None:
    with pytest.raises(ConfigError, match="must hold one key") as refused:
        Credentials.parse(text, "--key-file K")
    assert not text.strip() or text.strip() not in str(refused.value)


def test_a_site_does_not_talk_to_a_driver_with_another_certificate() -> None:
    known, other = DriverSecrets.new(encrypted=True), DriverSecrets.new(encrypted=True)
    context = other.server_context()
    assert context is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            taken, _ = listener.accept()
            with taken, contextlib.suppress(OSError):
                context.wrap_socket(taken, server_side=True)

        driver = threading.Thread(target=answer, daemon=True)
        driver.start()
        url = f"wss://127.0.0.1:{listener.getsockname()[1]}"
        ended: queue.SimpleQueue[HocketError | None] = queue.SimpleQueue()
        link = DriverLink(url, known.credentials, Site("one"), wait_s=DEADLINE_S)
        link.start(ended.put)
        error = ended.get(timeout=DEADLINE_S)
        driver.join(DEADLINE_S)
    assert isinstance(error, UsageError)
    assert "is not the driver whose certificate the key file holds" in str(error)


def test_a_key_never_leaves_on_a_connection_that_is_not_encrypted(tmp_path: Path) -> None:
    DriverSecrets.new(encrypted=True).credentials.save(tmp_path / "key")
    with pytest.raises(UsageError, match="--connect wss://head:7000"):
        work.run(["--connect", "ws://head:7000", "--key-file", str(tmp_path / "key")])
