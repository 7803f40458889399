"""Images made to a server's measure: Pillow's bilinear resize without Pillow.

Pillow works in two passes, along rows and along columns, with weights of 22 fractional bits and a
rounding to 8 bits after each; when it shrinks, the filter widens, so that nothing aliases. This is
the same to the bit, rows first; Pillows that run the columns first differ by at most one level.
It stays beside Pillow because clients of policy servers need no Pillow, and because the tests hold
it to Pillow's two passes bit by bit.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from hocket.core.data import Array

_BITS = 22
_HALF = 1 << (_BITS - 1)


def resize_with_pad(images: Array, height: int, width: int) -> Array:
    """uint8 images `[..., H, W, C]` scaled to fit and centred on black, as OpenPI's client does."""
    old_height, old_width = images.shape[-3:-1]
    if (old_height, old_width) == (height, width):
        return images
    ratio = max(old_width / width, old_height / height)
    new_height, new_width = int(old_height / ratio), int(old_width / ratio)
    small = resize(images, new_height, new_width)
    padded = np.zeros((*images.shape[:-3], height, width, images.shape[-1]), np.uint8)
    top, left = (height - new_height) // 2, (width - new_width) // 2
    padded[..., top : top + new_height, left : left + new_width, :] = small
    return padded


def resize(images: Array, height: int, width: int) -> Array:
    """uint8 images `[..., H, W, C]` at another size."""
    if images.dtype != np.uint8:
        raise ValueError(f"resize takes uint8 images, not {images.dtype}")
    return _along(_along(images, width, -2), height, -3)


def as_uint8(images: Array) -> Array:
    """Float images in [0, 1] as uint8, cut off rather than rounded, as OpenPI's client does."""
    if images.dtype.kind == "f":
        return (255 * images).astype(np.uint8)
    return images.astype(np.uint8, copy=False)


def _along(images: Array, size: int, axis: int) -> Array:
    if images.shape[axis] == size:
        return images
    sources, weights = _filter(images.shape[axis], size)
    shape = [1] * images.ndim
    shape[axis] = size
    total: Array = np.full((), _HALF, np.int32)
    for tap in range(sources.shape[1]):
        weight = weights[:, tap].reshape(shape)
        total = total + np.take(images, sources[:, tap], axis=axis) * weight
    scaled: Array = (total >> _BITS).astype(np.uint8)
    return scaled


@functools.lru_cache(maxsize=64)
def _filter(old: int, new: int) -> tuple[Array, Array]:
    """For each new pixel the old pixels `[new, taps]` that it is made of, and their weights."""
    scale = old / new
    stretch = max(scale, 1.0)
    taps = math.ceil(stretch) * 2 + 1
    sources = np.zeros((new, taps), np.intp)
    weights = np.zeros((new, taps), np.int32)
    for pixel in range(new):
        centre = (pixel + 0.5) * scale
        first = max(int(centre - stretch + 0.5), 0)
        last = min(int(centre + stretch + 0.5), old)
        raw = [max(0.0, 1.0 - abs((at - centre + 0.5) / stretch)) for at in range(first, last)]
        whole = sum(raw)
        for tap, weight in enumerate(raw):
            sources[pixel, tap] = first + tap
            weights[pixel, tap] = int(0.5 + weight / whole * (1 << _BITS))
    used = int((weights != 0).any(axis=0).nonzero()[0][-1]) + 1
    return sources[:, :used], weights[:, :used]
