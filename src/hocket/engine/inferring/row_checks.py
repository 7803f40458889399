"""Which batches are inferred a second time, and how the rows stand there.

The bits of a row's answer may depend on its batch: on how many rows there are, and on where the row
stands among them. No number of checks proves that they do not, so checks are evidence and are
counted. Nothing here calls a policy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hocket.core.data import Array, RowChecks

SHARE = 128
"""One batch of this many is inferred again, with at most twice its rows: at most 1.6 % of all
rows."""


def other_batch(rows: int, seed: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The batch in which `rows` rows are inferred again: for each of its rows, the index that the
    row had. It is empty for most batches, and where no other batch can be made of `sizes`.

    `seed` is the first row's hash of trial and chunk: a trial's checks are the same in every run
    that makes the same batches. Every row stands at another index there; one that was alone stands
    twice in a batch of two.
    """
    if seed % SHARE:
        return ()
    able = [size for size in sizes if size <= max(2, 2 * rows) and (size != rows or rows > 1)]
    if not able:
        return ()
    turn, which = divmod(seed // SHARE, len(able))
    size = able[which]
    shift = 1 + turn % (rows - 1) if rows > 1 else 0
    return tuple((index + shift) % rows for index in range(size))


def compare_rows(first: Array, again: Array, order: Sequence[int]) -> RowChecks:
    """Compare the answers to a batch with those to the other batch, bit for bit. A row that stands
    there more than once is one check."""
    differed = {
        row
        for row, actions in zip(order, again, strict=True)
        if not _same_bits(first[row], actions)
    }
    return RowChecks(made=len(set(order)), differed=len(differed))


def compare_copies(first: Array, copies: Array) -> RowChecks:
    """Compare the answers to a batch of one row's copies with that row's first answer."""
    same = all(_same_bits(first, actions) for actions in copies)
    return RowChecks(made=1, differed=int(not same))


def _same_bits(a: Array, b: Array) -> bool:
    return (
        a.dtype == b.dtype and a.shape == b.shape and np.array(a).tobytes() == np.array(b).tobytes()
    )
