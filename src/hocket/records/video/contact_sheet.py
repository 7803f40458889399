"""Images side by side with their names, as one PNG: no imaging library is needed for that."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hocket.core.data import Array

_MARGIN = 8
_SCALE = 2
_GLYPH = (3, 5)
"""Width and height of a letter before scaling."""
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/_-.:[]"
_SHAPES = (
    "25755 65656 34443 65556 74647 74644 34553 55755 72227 11152 55655 44447 57755 "
    "65555 25552 65644 25563 65655 34216 72222 55557 55552 55775 55255 55222 71247 "
    "25552 26227 61247 61216 55711 74616 34757 71122 75757 75716 "
    "11244 00007 00700 00002 02020 64446 31113"
)
"""Five rows of three pixels each: one octal digit is one row, its highest bit to the left."""
_LETTERS = dict(zip(_ALPHABET, _SHAPES.split(), strict=True))


def is_picture(array: Array) -> bool:
    """Whether an array looks like an image: height, width and 1, 3 or 4 channels, or channels
    first."""
    if array.ndim != 3 or min(array.shape) < 1:
        return False
    last, first = array.shape[2] in (1, 3, 4), array.shape[0] in (1, 3, 4)
    return (last and min(array.shape[:2]) > 4) or (first and min(array.shape[1:]) > 4)


def contact_sheet(pictures: Mapping[str, Array]) -> Array:
    """The images in a row, each under its name; `[height, width, 3]`, uint8."""
    cells = [_cell(name, _as_rgb(picture)) for name, picture in pictures.items()]
    height = max(cell.shape[0] for cell in cells)
    padded = [
        np.pad(cell, ((0, height - cell.shape[0]), (0, 0), (0, 0)), constant_values=255)
        for cell in cells
    ]
    return np.concatenate(padded, axis=1)


def write_png(path: Path, image: Array) -> None:
    """Save `[height, width, 3]` uint8."""
    height, width, _ = image.shape
    # Every row begins with the number of its filter; 0 is none.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def _as_rgb(picture: Array) -> Array:
    """As a screen shows it, without turning or mirroring anything."""
    if picture.shape[2] not in (1, 3, 4):
        picture = np.moveaxis(picture, 0, 2)
    if picture.dtype != np.uint8:
        low, high = float(picture.min()), float(picture.max())
        # The usual conventions: [-1, 1], [0, 1], or 0 to 255 as floats.
        shifted = (picture + 1) / 2 if low < 0 else picture
        scale = 255.0 if high <= 1 else 1.0
        picture = np.clip(np.nan_to_num(shifted) * scale, 0, 255).astype(np.uint8)
    return np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else picture[:, :, :3]


def _cell(name: str, picture: Array) -> Array:
    label = _text(name)
    width = max(picture.shape[1], label.shape[1]) + 2 * _MARGIN
    height = label.shape[0] + picture.shape[0] + 3 * _MARGIN
    cell = np.full((height, width, 3), 255, np.uint8)
    cell[_MARGIN : _MARGIN + label.shape[0], _MARGIN : _MARGIN + label.shape[1]] = label
    top = label.shape[0] + 2 * _MARGIN
    cell[top : top + picture.shape[0], _MARGIN : _MARGIN + picture.shape[1]] = picture
    return cell


def letters(text: str) -> Array:
    """Where the ink of a line of capitals is, `[5, 4 a letter]` of bool."""
    glyph_width, glyph_height = _GLYPH
    ink = np.zeros((glyph_height, max(1, len(text) * (glyph_width + 1))), np.bool_)
    for place, letter in enumerate(text.upper()):
        for row, bits in enumerate(_LETTERS.get(letter, "00000")):
            for column in range(glyph_width):
                if int(bits, 8) >> (glyph_width - 1 - column) & 1:
                    ink[row, place * (glyph_width + 1) + column] = True
    return ink


def _text(text: str) -> Array:
    """Black capitals on white."""
    page = np.where(letters(text), 0, 255).astype(np.uint8)
    page = page.repeat(_SCALE, axis=0).repeat(_SCALE, axis=1)
    return np.repeat(page[:, :, None], 3, axis=2)
