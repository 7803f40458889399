import struct
import zlib
from pathlib import Path

import numpy as np

from hocket.workers.sinks.pictures import contact_sheet, is_picture, write_png


def read_png(path: Path) -> np.ndarray:
    """An independent reading of the one kind of PNG that is written: 8 bits, RGB, no filters."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, dict[bytes, bytes]()
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        (checksum,) = struct.unpack(">I", data[at + 8 + length : at + 12 + length])
        assert checksum == zlib.crc32(kind + body)
        parts[kind] = parts.get(kind, b"") + body
        at += 12 + length
    width, height = struct.unpack(">II", parts[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def test_a_png_holds_the_pixels_that_were_written(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (7, 11, 3)).astype(np.uint8)
    write_png(tmp_path / "deep" / "x.png", image)
    np.testing.assert_array_equal(read_png(tmp_path / "deep" / "x.png"), image)


def test_images_stand_unturned_beside_each_other_under_their_names() -> None:
    left = np.zeros((20, 30, 3), np.uint8)
    left[0, 0] = (255, 0, 0)
    right = np.full((40, 10, 3), (7, 8, 9), np.uint8)
    sheet = contact_sheet({"a": left, "b": right})
    reds = np.argwhere((sheet == (255, 0, 0)).all(axis=2))
    assert (len(reds), reds.min(axis=0).tolist()) == (12 * 12, [35, 8]), "12 times as large"
    assert (sheet == (7, 8, 9)).all(axis=2).sum() == 400 * 23**2
    assert (sheet[8:27] == 0).any(), "the label is drawn in black"


def test_floats_and_channels_first_are_shown_too() -> None:
    zero_to_one = np.zeros((3, 16, 16), np.float32)
    zero_to_one[1] = 1.0
    assert is_picture(zero_to_one)
    sheet = contact_sheet({"": zero_to_one})
    assert (sheet == (0, 255, 0)).all(axis=2).sum() == 224**2
    signed = np.full((16, 16, 1), -1.0, np.float32)
    assert (contact_sheet({"": signed}) == 0).all(axis=2).sum() == 224**2


def test_a_state_is_no_picture() -> None:
    assert not is_picture(np.zeros(39))
    assert not is_picture(np.zeros((2, 4, 3), np.uint8))
