"""Pictures: which arrays are some, as frames of a video, with text in them, and side by side.

Everything but `write_png` and `encode_jpeg` needs numpy alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.core.data import Array, Observation
from hocket.errors import ObservationError
from hocket.workers.env.spaces import is_image

if TYPE_CHECKING:
    import av

_ROUNDING = 1e-3
"""A renderer's arithmetic may leave [0, 1] by this much."""
_LETTERS_ACROSS = 26
"""Letters burnt into a frame are as large as lets this many fit side by side."""
_OVERLAY_MARGIN = 2
_SHEET_MARGIN = 8
_SHEET_SIDE = 224
"""Pixels that the shorter side of a picture has at least on a contact sheet."""
_FONT = Path(__file__).with_name("letters.npz")
"""`ink`, uint8 `[letters, height, width]`: DejaVu Sans Mono's letters from the space on."""
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


# -- frames of a video -------------------------------------------------------------------------


def cameras_in(observation: Observation) -> list[str]:
    """Keys that hold pictures: uint8 `[height, width, 1, 3 or 4]`, or floats in [0, 1] with 3 or 4
    channels. A float array with one channel is no picture: it may be a depth, in metres."""
    return [key for key, array in sorted(observation.items()) if _is_frame(array)]


def as_frame(key: str, array: Array, step: int) -> Array:
    """The picture as RGB, uint8 `[height, width, 3]`; alpha is left out, floats become 0 to 255.

    The frame may be the array itself.
    """
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or array.dtype.kind not in "uf":
        raise ObservationError(
            f"{key!r} at step {step} is {array.dtype} {array.shape}, which is no picture: uint8 or "
            f"floats, [height, width, 1, 3 or 4]."
        )
    if array.dtype != np.uint8:
        if not _is_in_unit_range(array):
            raise ObservationError(
                f"{key!r} at step {step} has values from {array.min()} to {array.max()}; a picture "
                f"of {array.dtype} has them in [0, 1]. Give uint8, or scale it."
            )
        array = np.rint(np.clip(array, 0, 1) * 255).astype(np.uint8)
    if array.shape[2] == 1:
        return np.repeat(array, 3, axis=2)
    return array if array.shape[2] == 3 else array[:, :, :3]


def _is_frame(array: Array) -> bool:
    if is_image(array):
        return True
    is_shaped = array.ndim == 3 and array.shape[2] in (3, 4) and min(array.shape[:2]) > 4
    return is_shaped and array.dtype.kind == "f" and _is_in_unit_range(array)


def _is_in_unit_range(array: Array) -> bool:
    # A NaN is not in it: no comparison with one is true.
    return bool(array.min() >= -_ROUNDING and array.max() <= 1 + _ROUNDING)


# -- text in frames ----------------------------------------------------------------------------


def caption(task: str, step: int, steps: int | None, outcome: str) -> list[str]:
    """The lines to burn in: the task, then the step and the outcome as far as they are known."""
    counted = f"step {step}" if steps is None else f"step {step}/{steps}"
    return [task, f"{counted} {outcome}".rstrip()]


def draw_lines(frame: Array, lines: Sequence[str]) -> Array:
    """A copy of an RGB frame with lines of text in its upper left corner, white on dark. What
    does not fit is cut off."""
    drawn = frame.copy()
    scale = max(1, frame.shape[1] // (4 * _LETTERS_ACROSS))
    top = 0
    for line in lines:
        ink = _letters(line).repeat(scale, axis=0).repeat(scale, axis=1)
        ink = np.pad(ink, _OVERLAY_MARGIN)
        area = drawn[top : top + ink.shape[0], : ink.shape[1]]
        ink = ink[: area.shape[0], : area.shape[1]]
        area //= 4
        area[ink] = 255
        top += ink.shape[0] - _OVERLAY_MARGIN
    return drawn


def _letters(text: str) -> Array:
    """Where the ink of a line of capitals is, bool `[5, 4 * letters]`."""
    glyph_width, glyph_height = _GLYPH
    ink = np.zeros((glyph_height, max(1, len(text) * (glyph_width + 1))), np.bool_)
    for index, letter in enumerate(text.upper()):
        for row, bits in enumerate(_LETTERS.get(letter, "00000")):
            for column in range(glyph_width):
                if int(bits, 8) >> (glyph_width - 1 - column) & 1:
                    ink[row, index * (glyph_width + 1) + column] = True
    return ink


# -- contact sheets ----------------------------------------------------------------------------


def is_picture(array: Array) -> bool:
    """True for what looks like an image, whatever its numbers mean: height, width and 1, 3 or 4
    channels, or channels first."""
    if array.ndim != 3 or min(array.shape) < 1:
        return False
    last, first = array.shape[2] in (1, 3, 4), array.shape[0] in (1, 3, 4)
    return (last and min(array.shape[:2]) > 4) or (first and min(array.shape[1:]) > 4)


def contact_sheet(pictures: Mapping[str, Array]) -> Array:
    """The images in a row, each under its name, uint8 `[height, width, 3]`. Small ones are enlarged
    by a whole number, so that each of their pixels stays one."""
    cells = [_cell(name, _as_rgb(picture)) for name, picture in pictures.items()]
    height = max(cell.shape[0] for cell in cells)
    padded = [
        np.pad(cell, ((0, height - cell.shape[0]), (0, 0), (0, 0)), constant_values=255)
        for cell in cells
    ]
    return np.concatenate(padded, axis=1)


def write_png(path: Path, image: Array) -> None:
    """Save an RGB image, uint8 `[height, width, 3]`, as a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_png(image))


def encode_png(image: Array) -> bytes:
    """An RGB image, uint8 `[height, width, 3]`, as a PNG."""
    import av

    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
    # Rows as they are, as simple readers expect them.
    return _encoded(av.CodecContext.create("png", "w"), frame, {"pred": "none"})


def encode_jpeg(frames: Sequence[Array], width: int) -> bytes:
    """RGB frames side by side as a JPEG, `width` pixels for each."""
    import av

    tallest = max(frame.shape[0] for frame in frames)
    row = [np.pad(one, ((0, tallest - one.shape[0]), (0, 0), (0, 0))) for one in frames]
    image = np.ascontiguousarray(row[0] if len(row) == 1 else np.concatenate(row, axis=1))
    wide = width * len(frames)
    height = max(2, round(tallest * wide / image.shape[1] / 2) * 2)
    source = av.VideoFrame.from_ndarray(image, format="rgb24")
    converter = av.video.reformatter.VideoReformatter()
    picture = reformatted(converter, source, width=wide, height=height, format="yuvj420p")
    return _encoded(av.CodecContext.create("mjpeg", "w"), picture, {})


def reformatted(
    converter: av.video.reformatter.VideoReformatter, frame: av.VideoFrame, **wanted: Any
) -> av.VideoFrame:
    """A frame in another format or size, by one thread: several cost four times the work."""
    try:
        return converter.reformat(frame, **wanted, threads=1)
    except TypeError:
        # Before PyAV could be told, there was one thread anyway.
        return converter.reformat(frame, **wanted)


def _encoded(codec: av.CodecContext, picture: av.VideoFrame, options: Mapping[str, str]) -> bytes:
    codec.width, codec.height, codec.pix_fmt = picture.width, picture.height, picture.format.name
    codec.time_base = Fraction(1, 25)  # an encoder wants one, also for a single picture
    codec.options = dict(options)
    picture.pts = 0
    return b"".join(bytes(packet) for packet in [*codec.encode(picture), *codec.encode(None)])


def _as_rgb(picture: Array) -> Array:
    """The picture as a screen shows it, neither turned nor mirrored."""
    if picture.shape[2] not in (1, 3, 4):
        picture = np.moveaxis(picture, 0, 2)
    if picture.dtype != np.uint8:
        low, high = float(picture.min()), float(picture.max())
        # The usual conventions: [-1, 1], [0, 1], or 0 to 255 as floats.
        shifted = (picture + 1) / 2 if low < 0 else picture
        scale = 255.0 if high <= 1 else 1.0
        picture = np.clip(np.nan_to_num(shifted) * scale, 0, 255).astype(np.uint8)
    return np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else picture[:, :, :3]


def _written(text: str) -> Array:
    """A line of text, black on white, uint8 `[height, width]`."""
    with np.load(_FONT) as font:
        ink = font["ink"]
    codes = [ord(letter) - 32 if " " <= letter <= "~" else ord("?") - 32 for letter in text or " "]
    return 255 - np.concatenate(ink[codes], axis=1)


def _cell(name: str, picture: Array) -> Array:
    label = _written(name)[:, :, None]
    scale = -(-_SHEET_SIDE // min(picture.shape[:2]))
    picture = picture.repeat(scale, axis=0).repeat(scale, axis=1)
    width = max(picture.shape[1], label.shape[1]) + 2 * _SHEET_MARGIN
    height = label.shape[0] + picture.shape[0] + 3 * _SHEET_MARGIN
    cell = np.full((height, width, 3), 255, np.uint8)
    left, top = _SHEET_MARGIN, _SHEET_MARGIN
    cell[top : top + label.shape[0], left : left + label.shape[1]] = label
    top = label.shape[0] + 2 * _SHEET_MARGIN
    cell[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return cell
