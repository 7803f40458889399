"""Files of attempts as they arrive from workers that do not share the parent's disk."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from hocket.errors import WireError
from hocket.workers.links.files import Incoming, pieces

LIMIT = 1 << 16


def incoming(root: Path) -> Incoming:
    return Incoming(str(root / "run"), "trial", 0, ("*.npy",), 1 << 30)


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_file_that_the_disk_takes_in_part_is_an_error_and_leaves_nothing(
    tmp_path: Path, is_durable: bool
) -> None:
    (tmp_path / "a.npy").write_bytes(bytes(2 * LIMIT))
    (piece,) = pieces(0, 0, str(tmp_path / "a.npy"))
    taker = incoming(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    try:
        with pytest.raises(OSError, match="No space"):
            taker.take(piece, is_durable=is_durable)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(WireError):
        taker.finish(["a.npy"])
    assert not list((tmp_path / "run").rglob("*.npy*"))


@pytest.mark.parametrize("is_durable", [True, False])
def test_what_did_not_arrive_as_it_was_sent_is_refused_and_what_did_has_its_name(
    tmp_path: Path, is_durable: bool
) -> None:
    (tmp_path / "a.npy").write_bytes(b"numbers")
    (piece,) = pieces(0, 0, str(tmp_path / "a.npy"))
    taker = incoming(tmp_path)
    with pytest.raises(WireError, match="as it was sent"):
        taker.take(piece._replace(data=b"numbars"), is_durable=is_durable)
    assert not list((tmp_path / "run").rglob("*.npy*"))
    taker = incoming(tmp_path)
    taker.take(piece, is_durable=is_durable)
    assert taker.finish(["a.npy"]) == ["episodes/trial/0/a.npy"]
    assert (tmp_path / "run/episodes/trial/0/a.npy").read_bytes() == b"numbers"
