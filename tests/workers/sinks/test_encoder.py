from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.core.data import Array
from hocket.errors import MissingExtraError, RunFolderError
from hocket.system.durable import temporary
from hocket.workers.sinks.encoder import (
    UNTIMED_RATE,
    Quality,
    VideoFile,
    exact_rate,
    read_pictures,
    require_encoder,
    size_of,
)


def gray(value: int, height: int = 34, width: int = 46) -> Array:
    return np.full((height, width, 3), value, np.uint8)


def film(path: Path, frames: list[Array], rate: float | None = 20.0, **quality: object) -> Path:
    file = VideoFile(path, exact_rate(rate), Quality(**quality))  # type: ignore[arg-type]
    for frame in frames:
        file.write(frame)
    assert file.seal()
    return path


def decode(path: Path) -> list[tuple[Fraction, Array]]:
    with av.open(str(path), format="mp4") as container:
        stream = container.streams.video[0]
        return [
            (frame.pts * stream.time_base, frame.to_ndarray(format="rgb24"))
            for frame in container.decode(stream)
        ]


@pytest.mark.parametrize("rate", [80.0, 29.97, 30000 / 1001, 100 / 3, 12.5, 0.5, None])
def test_frames_are_shown_when_they_happened(tmp_path: Path, rate: float | None) -> None:
    path = film(tmp_path / "a.mp4", [gray(i) for i in range(61)], rate)
    exact = exact_rate(rate)
    assert [time for time, _ in decode(path)] == [i / exact for i in range(61)]
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.duration * stream.time_base == 61 / exact
        assert stream.average_rate == exact
        assert stream.frames == 61


@given(st.floats(max_value=1e5, allow_infinity=False) | st.just(math.nan))
def test_a_rate_is_never_zero_and_close_to_what_was_said(rate: float) -> None:
    exact = exact_rate(rate)
    assert exact > 0
    if rate >= 1e-4:
        assert abs(float(exact) - rate) <= 1e-4
    elif not rate > 0:
        assert exact == UNTIMED_RATE


def test_common_rates_are_the_fractions_that_were_meant() -> None:
    assert exact_rate(29.97) == Fraction(2997, 100)
    assert exact_rate(30000 / 1001) == Fraction(30000, 1001)
    assert exact_rate(1 / 0.03) == Fraction(100, 3)


def test_a_sealed_file_seeks_to_any_time_and_its_index_comes_first(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", [gray(i) for i in range(200)])
    data = path.read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        for wanted in (150, 20, 199, 0):
            container.seek(int(Fraction(wanted, 20) / stream.time_base), stream=stream)
            first = next(container.decode(stream))
            got = int(first.pts * stream.time_base * 20)
            assert wanted - 10 <= got <= wanted, "a keyframe at least every half second"
            assert abs(int(first.to_ndarray(format="rgb24")[5, 5, 0]) - got) <= 3


def test_odd_sizes_become_even_and_the_picture_stays_where_it_was(tmp_path: Path) -> None:
    frame = gray(40, 33, 47)
    frame[:, 24:] = 200
    ((_, got),) = decode(film(tmp_path / "a.mp4", [frame], crf=1))
    assert got.shape == (34, 48, 3)
    assert np.abs(got[:33, :20].astype(int) - 40).max() <= 3
    assert np.abs(got[:, 28:].astype(int) - 200).max() <= 3


def test_lossless_keeps_every_pixel_of_any_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (33, 47, 3), dtype=np.uint8) for _ in range(30)]
    got = decode(film(tmp_path / "a.mp4", frames, lossless=True))
    assert all(np.array_equal(a, b) for (_, a), b in zip(got, frames, strict=True))


def test_without_frames_there_is_no_file(tmp_path: Path) -> None:
    file = VideoFile(tmp_path / "a.mp4", Fraction(20), Quality())
    assert not file.seal()
    file.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_discarded_file_leaves_nothing(tmp_path: Path) -> None:
    file = VideoFile(tmp_path / "a.mp4", Fraction(20), Quality())
    for i in range(30):
        file.write(gray(i))
    assert temporary(tmp_path / "a.mp4").exists()
    file.discard()
    file.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rate", [10.0, 80.0])
def test_after_kill_9_a_file_plays_up_to_the_last_second(tmp_path: Path, rate: float) -> None:
    code = f"""
import os, signal, numpy as np
from pathlib import Path
from hocket.workers.sinks.encoder import Quality, VideoFile, exact_rate
file = VideoFile(Path({str(tmp_path / "a.mp4")!r}), exact_rate({rate}), Quality())
rng = np.random.default_rng(0)
for i in range(int(5 * {rate})):
    file.write(rng.integers(0, 256, (34, 46, 3), dtype=np.uint8))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=100, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "a.mp4").exists()
    times = [time for time, _ in decode(temporary(tmp_path / "a.mp4"))]
    assert times == [i / exact_rate(rate) for i in range(len(times))]
    assert len(times) >= 4 * rate


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], timeout=100, check=True)


def test_a_full_disk_says_so_and_is_not_filled_for_ever(small_disk: Path) -> None:
    rng = np.random.default_rng(0)
    file = VideoFile(small_disk / "a.mp4", Fraction(20), Quality(lossless=True))

    def fill() -> None:
        for _ in range(60):
            file.write(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
        file.seal()

    with pytest.raises(RunFolderError, match="No space is left"):
        fill()
    file.discard()
    assert list(small_disk.iterdir()) == []


def test_a_missing_encoder_says_what_to_install_and_how_to_go_on_without() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install .*av.* --video none") as caught:
        require_encoder("libx264-of-another-build")
    assert "libx264-of-another-build" in str(caught.value)


def test_an_interpreter_without_av_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "av.py").write_text("raise ImportError('no av here')")
    code = "from hocket.workers.sinks.encoder import require_encoder; require_encoder()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "MissingExtraError" in done.stderr
    assert "pip install" in done.stderr


def test_no_flipped_bit_of_lossless_pictures_is_read_as_other_pixels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 255, (16, 16, 3)).astype(np.uint8) for _ in range(3)]
    path = film(tmp_path / "a.lossless.m4v", frames, lossless=True)
    whole = path.read_bytes()
    assert [f.tolist() for f in read_pictures(path, 3)] == [f.tolist() for f in frames]
    refused = 0
    for at in range(0, len(whole), 61):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        try:
            found = list(read_pictures(path, 3))
        except RunFolderError:
            refused += 1
        else:
            assert [f.tolist() for f in found] == [f.tolist() for f in frames]
    assert refused > len(whole) / 61 / 2
    for length in (0, 20, len(whole) // 2):
        path.write_bytes(whole[:length])
        with pytest.raises(RunFolderError, match=r"lossless\.m4v"):
            list(read_pictures(path, 3))
        with contextlib.suppress(RunFolderError):
            size_of(path)
