"""A file of keys: comments are no keys, and what cannot be one is told without being shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.errors import ConfigError
from hocket.serve.server import client_of, load_keys
from hocket.system.exposure import read_key, read_keys

COMMENTED = "\ufeff# keys of the lab\n\n  # indented, for the robot\n\t#tab\n  s3cret  \r\n"


def is_admitted(header: str | None, keys: dict[str, str]) -> bool:
    return client_of([] if header is None else [header], keys) is not None


def test_comments_are_no_keys_however_they_are_indented(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(COMMENTED + "other\n", newline="")
    assert read_keys(str(tmp_path / "keys")) == ["s3cret", "other"]


def test_server_and_client_read_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(COMMENTED)
    keys = load_keys(str(file))
    assert is_admitted(f"Api-Key {read_key(str(file))}", keys)
    assert not is_admitted("Api-Key # indented, for the robot", keys)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"s3cret # the robot's\n", "Line 1 of the key file"),
        (b"# nothing\n  # more\n", "holds no key"),
        (b"\xff\xfe\x00s", "it is no text"),
        ("schl\u00fcssel\n".encode(), "Line 1 of the key file"),
    ],
)
def test_what_is_no_key_is_refused_and_not_shown(
    tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "keys").write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        read_keys(str(tmp_path / "keys"))
    assert "s3cret" not in str(caught.value)


def test_client_has_one_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one\ntwo\n")
    with pytest.raises(ConfigError, match="holds 2 keys"):
        read_key(str(tmp_path / "keys"))
