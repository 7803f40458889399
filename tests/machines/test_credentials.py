"""Key files: what they hold, who can read them, and whom they trust."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from hocket.errors import ConfigError
from hocket.machines.credentials import Credentials, DriverSecrets


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
