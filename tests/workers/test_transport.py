"""How arrays travel: through shared memory, or inside messages where there is none."""

from __future__ import annotations

import errno
import os
import random
import resource
from pathlib import Path

import numpy as np
import pytest

from hocket.core.data import Ref
from hocket.core.frames import Frames, pack
from hocket.core.wire import Message, Said
from hocket.workers.notices import LaneFailed, LanesBegun, LanesExecuted
from hocket.workers.shm import create_block, map_block
from support.rig import Rig, trials

SUITE = """
import os, resource
from hocket.testing.toy import ToySuite

def full():
    resource.setrlimit(resource.RLIMIT_FSIZE, (32, resource.RLIM_INFINITY))
    return ToySuite()

def forbidden():
    def refuse(*_):
        raise PermissionError("not here")
    os.memfd_create = refuse
    return ToySuite()

def missing():
    vars(os).pop("memfd_create", None)
    return ToySuite()
"""


@pytest.fixture
def suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "poor_memory.py").write_text(SUITE)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("suites")
@pytest.mark.parametrize("trouble", ["full", "forbidden", "missing"])
def test_arrays_travel_in_messages_where_memory_cannot_be_shared(trouble: str) -> None:
    planned = [*trials(2), *trials(1, "image")]
    with Rig() as rig:
        expected = rig.play(planned)
    with Rig(suite=Ref(name=f"poor_memory:{trouble}")) as rig:
        assert rig.play(planned) == expected


@pytest.mark.usefixtures("suites")
def test_shared_memory_that_was_insisted_on_and_is_full_fails_the_attempt() -> None:
    with Rig(suite=Ref(name="poor_memory:full"), transport="shm") as rig:
        rig.begin()
        assert rig.wait(LaneFailed).kind == "OSError"


@pytest.mark.parametrize("transport", ["shm", "inline"])
def test_pictures_arrive_whole_by_either_transport(transport: str) -> None:
    with Rig(toy={"image_size": 300}, transport=transport) as rig:
        rig.begin(task="image", seed=3)
        rig.wait(LanesBegun)
        first = rig.fleet.arrays(0)["observation/image"].copy()
        assert first.shape == (300, 300, 3)
        rig.execute(np.zeros((4, 4)))
        rig.wait(LanesExecuted)
        second = rig.fleet.arrays(0)["observation/image"]
        assert not np.array_equal(first, second)
        assert np.array_equal(second.ravel()[:8], second.ravel()[8:16])


@pytest.mark.parametrize("transport", ["shm", "inline"])
def test_views_stay_the_same_while_the_layout_does(transport: str) -> None:
    with Rig(toy={"length_min": 3, "length_max": 3}, transport=transport) as rig:
        views = []
        for task in ("count", "count", "pixels"):
            rig.begin(task=task)
            rig.wait(LanesBegun)
            views.append(next(iter(rig.fleet.arrays(0).values())))
            rig.execute(np.zeros((5, 4)))
            rig.wait(LanesExecuted)
        assert views[0] is views[1]
        assert views[2].shape == (32, 32, 3)


def test_message_larger_than_a_socket_buffer_arrives_whole() -> None:
    toy = {"length_min": 10**6, "length_max": 10**6, "action_size": 50}
    with Rig(toy=toy) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((4000, 50)))
        assert rig.wait(LanesExecuted).steps == [4000]


def test_block_that_does_not_fit_is_an_error_at_once() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            create_block("too-large", 1 << 21)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_block_is_shared_by_whoever_maps_it() -> None:
    fd = create_block("shared", 4096)
    one, other = map_block(fd), map_block(fd)
    os.close(fd)
    one[7] = 42
    assert other[7] == 42
    one.close()
    other.close()


def test_messages_are_the_same_however_their_bytes_arrive() -> None:
    chance = random.Random(3)
    sizes = [0, 5, 300_000, 1, 70_000, 9 << 20, 12, 300_000, 300_000, 7]
    sent = [Said("x" * size) for size in sizes]
    stream = b"".join(map(pack, sent))
    for longest in (1 << 20, 100_000, len(stream)):
        frames, at = Frames(), 0
        heard: list[Message] = []
        while at < len(stream):
            size = chance.randint(1, longest)
            heard += frames.feed(memoryview(stream)[at : at + size])
            at += size
        assert heard == sent
    frames = Frames()
    short = [message for byte in pack(sent[1]) * 3 for message in frames.feed(bytes([byte]))]
    assert short == [sent[1]] * 3
