import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.results.page.charts import (
    IntervalRow,
    area_chart,
    histogram,
    interval_chart,
    nice_ceiling,
    share_bar,
)
from hocket.results.stats import Interval


def row(value: float | None, low: float | None = None, high: float | None = None) -> IntervalRow:
    interval = (
        None
        if low is None or high is None
        else Interval(low=low, high=high, level=0.95, method="wilson")
    )
    return IntervalRow(label="push", value=value, interval=interval, text="t")


@given(st.floats(1e-9, 1e12))
def test_ceiling_is_round_near_and_not_below(value: float) -> None:
    found = nice_ceiling(value)
    assert value * 0.9998 <= found <= 2.6 * value
    assert re.match(r"[125]0*e|[125]\.?5?", f"{found:e}")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_ceiling_of_nothing_is_one(value: float) -> None:
    assert nice_ceiling(value) == 1.0


def test_undefined_row_has_neither_dot_nor_bar() -> None:
    drawn = interval_chart([row(None), row(0.5, 0.25, 0.75)], low=0, high=1, ticks=[(0, "0")])
    assert drawn.count("<circle") == 1
    assert drawn.count("<rect") == 1
    assert 'cx="50.000%"' in drawn
    assert 'x="25.000%"' in drawn


def test_values_beyond_the_scale_stay_on_it() -> None:
    drawn = interval_chart([row(9.0, -9.0, 9.0)], low=0, high=1, ticks=[])
    places = [float(x) for x in re.findall(r'(?:cx|x|width)="([\d.]+)%"', drawn)]
    assert places
    assert max(places) <= 100


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=50))
def test_columns_of_a_histogram_hold_all_episodes(steps: list[int]) -> None:
    drawn = histogram({"success": steps})
    tallest = int(re.findall(r"<span>([\d,]+)</span>", drawn)[0].replace(",", ""))
    heights = [float(height) for height in re.findall(r"v([\d.e+-]+)h", drawn)]
    assert sum(heights) * tallest / 100 == pytest.approx(len(steps), rel=0.02)


def test_share_bar_leaves_out_what_is_empty() -> None:
    drawn = share_bar({"a": 3.0, "b": 0.0, "c": 1.0}, {"a": "x", "b": "y", "c": "z"})
    assert re.findall(r"flex-grow:([\d.]+)", drawn) == ["0.75000", "0.25000"]
    assert "k-y" not in drawn


def test_area_begins_and_ends_on_the_ground() -> None:
    drawn = area_chart(np.array([1.0, 2.0, 4.0]), width_s=1.0, label="steps", end_label="3 s")
    assert "L30 100L0 100Z" in drawn
    assert "NaN" not in drawn
