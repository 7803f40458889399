from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from hocket.core import codec
from hocket.train.algorithms.stretches import (
    LayoutError,
    PaddedStretches,
    Stretch,
    in_trial_order,
    pad_stretches,
)
from support.trajectories import LENGTH, SIZE, stretch


def test_stretches_are_laid_out_as_documented() -> None:
    rng = np.random.default_rng(0)
    parts = [stretch(rng, chunks=2, seed=1), stretch(rng, chunks=5, seed=2, terminated=False)]
    padded = pad_stretches(parts)
    rows = padded.rows
    assert tuple(rows.batch_size) == (2, 5)
    assert tuple(rows["actions"].shape) == (2, 5, LENGTH, SIZE)
    assert rows["valid"].sum(-1).tolist() == [2, 5]
    assert rows["mask"].sum(-1)[1].tolist() == parts[1].executed.tolist()
    assert rows["terminated"].nonzero().tolist() == [[0, 1]]
    assert padded.has_final.tolist() == [False, True]
    np.testing.assert_array_equal(
        padded.final["observation/state"][1], parts[1].final["observation/state"]
    )


def test_flat_rows_keep_each_chunk_once_and_no_padding() -> None:
    rng = np.random.default_rng(0)
    parts = [stretch(rng, chunks=n, seed=n) for n in (1, 4, 2)]
    padded = pad_stretches(parts)
    flat = padded.flat(advantage=padded.rows["chunk"].float())
    assert list(zip(flat["stretch"].tolist(), flat["chunk"].tolist(), strict=True)) == [
        (i, c) for i, n in enumerate((1, 4, 2)) for c in range(n)
    ]
    with pytest.raises(LayoutError, match="advantage"):
        padded.flat(advantage=torch.zeros(4, 3))


def test_chunk_first_layout_is_refused() -> None:
    rng = np.random.default_rng(0)
    padded = pad_stretches([stretch(rng, chunks=3, seed=i) for i in range(3)])
    swapped = padded.rows.transpose(0, 1).contiguous()
    with pytest.raises(LayoutError, match=r"\[C, S\]"):
        PaddedStretches(rows=swapped, final=padded.final, has_final=padded.has_final)


def test_rows_after_an_episodes_end_are_refused() -> None:
    padded = pad_stretches([stretch(np.random.default_rng(0), chunks=3)])
    padded.rows["terminated"][0, 1] = True
    with pytest.raises(LayoutError, match="after its end"):
        PaddedStretches(rows=padded.rows, final=padded.final, has_final=padded.has_final)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"value": np.zeros(4, np.float32)}, "value"),
        ({"log_prob": np.zeros((LENGTH, 3), np.float32)}, "log_prob"),
        ({"chunk": np.array([0, 2, 3])}, "consecutive"),
        ({"executed": np.array([1, LENGTH + 1, 1])}, "executed"),
        ({"terminated": False, "final": None}, "not observed"),
        ({"extras": {"chain": np.zeros((2, 1))}}, "chain"),
    ],
)
def test_stretches_that_break_the_layout_are_refused(change: dict[str, object], text: str) -> None:
    good = stretch(np.random.default_rng(0))
    with pytest.raises(LayoutError, match=text):
        dataclasses.replace(good, **change)


def test_stretches_survive_the_wire() -> None:
    sent = stretch(np.random.default_rng(0), terminated=False, truncated=True)
    got = Stretch.from_plain(codec.unpack(codec.pack(sent.to_plain())))
    assert got.trial == sent.trial
    assert got.truncated
    for name in ("actions", "rewards", "log_prob", "value", "version", "chunk", "executed"):
        np.testing.assert_array_equal(getattr(got, name), getattr(sent, name))
    np.testing.assert_array_equal(got.final["observation/state"], sent.final["observation/state"])


def test_stretches_are_ordered_by_trial_whoever_finished_first() -> None:
    rng = np.random.default_rng(0)
    places = ((2, 0, 0), (1, 1, 3), (1, 1, 0))
    parts = [stretch(rng, seed=s, repeat=r, first=c) for s, r, c in places]
    ordered = [(p.trial.seed, int(p.chunk[0])) for p in in_trial_order(parts)]
    assert ordered == [(1, 0), (1, 3), (2, 0)]
