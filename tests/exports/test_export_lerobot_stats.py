"""Statistics that come bit by bit are those of the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.exports.lerobot import features as lerobot_stats
from hocket.exports.lerobot.features import QUANTILES, PictureStats, VectorStats, sampled


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    width=st.integers(1, 5),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    seed=st.integers(0, 2**32 - 1),
)
def test_pieces_give_what_the_whole_gives(
    sizes: list[int], width: int, scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    pieces = [(rng.normal(size=(n, width)) * scale + 3).astype(np.float32) for n in sizes]
    stats, whole = VectorStats(), np.concatenate(pieces).astype(np.float64)
    for piece in pieces:
        stats.add(piece)
    told = stats.finish()
    assert told["count"].tolist() == [len(whole)]
    np.testing.assert_allclose(told["mean"], whole.mean(axis=0), rtol=1e-9, atol=scale * 1e-9)
    np.testing.assert_allclose(told["std"], whole.std(axis=0), rtol=1e-7, atol=scale * 1e-7)
    np.testing.assert_array_equal(told["min"], whole.min(axis=0))
    np.testing.assert_array_equal(told["max"], whole.max(axis=0))
    for name, share in QUANTILES.items():
        expected = np.quantile(whole, share, axis=0)
        np.testing.assert_allclose(told[name], expected, rtol=1e-5, atol=scale * 1e-5)


def test_quantiles_of_more_rows_than_are_kept_stay_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lerobot_stats, "_MOST_ROWS", 2_000)
    rng = np.random.default_rng(0)
    stats, pieces = VectorStats(), [rng.normal(size=(n, 2)) for n in rng.integers(1, 300, 200)]
    for piece in pieces:
        stats.add(piece)
    whole, told = np.concatenate(pieces), stats.finish()
    assert len(whole) > 20_000
    assert sum(map(len, stats._kept)) <= 2_000
    np.testing.assert_allclose(told["q50"], np.quantile(whole, 0.5, axis=0), atol=0.1)
    np.testing.assert_allclose(told["q90"], np.quantile(whole, 0.9, axis=0), atol=0.15)
    np.testing.assert_allclose(told["mean"], whole.mean(axis=0), atol=1e-12)


@given(count=st.integers(1, 4), size=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_pictures_give_what_their_pixels_give(count: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pictures = rng.integers(0, 256, (count, size, size + 1, 3), dtype=np.uint8)
    stats, other = PictureStats(), PictureStats()
    for place, picture in enumerate(pictures):
        (stats if place % 2 else other).add(picture)
    stats.merge(other)
    told, pixels = stats.finish(), pictures.reshape(-1, 3) / 255
    assert told["count"].tolist() == [count]
    for name, value in {
        "mean": pixels.mean(axis=0),
        "std": pixels.std(axis=0),
        "min": pixels.min(axis=0),
        "max": pixels.max(axis=0),
        "q10": np.quantile(pixels, 0.1, axis=0, method="inverted_cdf"),
    }.items():
        assert told[name].shape == (3, 1, 1)
        np.testing.assert_allclose(told[name].ravel(), value, atol=1e-7)


@given(length=st.integers(1, 5000))
def test_samples_lie_inside_and_reach_both_ends(length: int) -> None:
    places = sampled(length)
    assert min(places) == 0
    assert max(places) == length - 1
    assert len(places) >= min(length, 100)
