"""Charts as SVG and boxes, drawn by hand. They take any width: positions are in percent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hocket.core.data import Array
from hocket.results.page.markup import Child, Markup, breakable, join, tag
from hocket.results.stats import Interval

_FEWEST_COLUMNS, _COLUMNS = 12, 40
LONG = 45
"""A chart with more rows than this scrolls in a frame of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalRow:
    """One line of an interval chart; a value that is undefined is None."""

    label: str
    value: float | None
    interval: Interval | None
    text: str
    bounds: str = ""
    count: str = ""
    strong: bool = False
    kind: str = "neutral"
    """A colour's name in the style sheet."""


def extent(rows: Sequence[IntervalRow]) -> list[float]:
    """All that an interval chart has to show."""
    bounds = [x for row in rows if row.interval for x in (row.interval.low, row.interval.high)]
    return bounds + [row.value for row in rows if row.value is not None]


def interval_chart(
    rows: Sequence[IntervalRow],
    *,
    low: float,
    high: float,
    ticks: Sequence[tuple[float, str]],
    zero: float | None = None,
) -> Markup:
    """A dot and a bar for each row, over one scale from `low` to `high`."""

    def position(value: float) -> float:
        return 100 * (min(max(value, low), high) - low) / ((high - low) or 1.0)

    grid = join(_line(position(at), "tick-zero" if at == zero else "tick") for at, _ in ticks)
    lines = []
    for row in rows:
        marks: list[Child] = [grid]
        if row.interval is not None:
            left, right = position(row.interval.low), position(row.interval.high)
            marks.append(
                tag("rect", class_="bar", x=_pc(left), y=11, rx=3, height=6,
                    width=_pc(max(right - left, 0.2)))
            )  # fmt: skip
        if row.value is not None:
            marks.append(tag("circle", class_="dot", cx=_pc(position(row.value)), cy=14, r=5))
        spoken = f"{row.label}: {row.text} {row.bounds} {row.count}"
        lines.append(
            tag(
                "div",
                tag("div", breakable(row.label), class_="ic-label", title=row.label),
                tag("svg", *marks, class_=f"ic-plot k-{row.kind}", role="img", aria_label=spoken),
                tag(
                    "div",
                    tag("b", row.text),
                    tag("span", row.bounds),
                    tag("span", row.count),
                    class_="ic-value",
                ),
                class_="ic-row strong" if row.strong else "ic-row",
            )
        )
    scale = tag(
        "div",
        tag("div"),
        tag("div", (_tick_label(position(at), text) for at, text in ticks), class_="ic-scale"),
        tag("div"),
        class_="ic-row ic-axis",
        aria_hidden="true",
    )
    long = " scroll long" if len(rows) > LONG else ""
    return tag("div", *lines, scale, class_=f"intervals{long}")


def share_bar(parts: Mapping[str, float], kinds: Mapping[str, str]) -> Markup:
    """One bar of parts of a whole, in order; empty ones are left out."""
    total = sum(parts.values()) or 1.0
    pieces = [
        tag(
            "i",
            class_=f"k-{kinds[name]}",
            style=f"flex-grow:{value / total:.5f}",
            title=f"{name}: {100 * value / total:.1f} %",
        )
        for name, value in parts.items()
        if value > 0
    ]
    words = ", ".join(f"{name} {100 * value / total:.0f} %" for name, value in parts.items())
    return tag("div", *pieces, class_="shares", role="img", aria_label=words)


def legend(entries: Iterable[tuple[str, str, str]]) -> Markup:
    """A list with the colour, the name and a figure of each entry."""
    items = [
        tag("li", tag("i", class_=f"swatch k-{kind}"), name, " ", tag("b", figure or None))
        for kind, name, figure in entries
    ]
    return tag("ul", *items, class_="legend")


def tiles(entries: Iterable[tuple[str, str, str | None]]) -> Markup:
    """A box for each entry, with its name, its figure, and the unit where there is one."""
    boxes = [
        tag(
            "div",
            tag("dt", name),
            tag("dd", figure, None if unit is None else tag("small", unit)),
        )
        for name, figure, unit in entries
    ]
    return tag("dl", *boxes, class_="tiles")


def histogram(groups: Mapping[str, Sequence[float]]) -> Markup:
    """Stacked counts of episodes by their steps, a colour for each group."""
    values = np.concatenate([np.asarray(some, float) for some in groups.values()])
    low, high = float(values.min()), float(values.max())
    width = max(1, math.ceil(nice_ceiling((high - low + 1) / _COLUMNS)))
    first = width * math.floor(low / width)
    columns = max(_FEWEST_COLUMNS, math.floor((high - first) / width) + 1)
    edges = first + width * np.arange(columns + 1)
    counts = {kind: np.histogram(some, edges)[0] for kind, some in groups.items() if len(some)}
    tallest = max(1, int(np.sum(list(counts.values()), axis=0).max()))
    floor = np.zeros(columns)
    paths: list[Markup] = []
    for kind, some in counts.items():
        tops = floor + some
        paths.append(tag("path", class_=f"k-{kind}", d=_columns(floor, tops, columns, tallest)))
        floor = tops
    span = "1 step" if width == 1 else f"{width:,} steps"
    return _framed(
        paths,
        width=columns * 10,
        top=tallest,
        axis=(f"{first:,.0f}", f"steps an episode; a column is {span}", f"{edges[-1]:,.0f}"),
        label=f"{len(values):,} episodes, from {low:,.0f} to {high:,.0f} steps",
    )


def area_chart(values: Array, *, width_s: float, label: str, end_label: str) -> Markup:
    """Values over time as a filled line."""
    top = nice_ceiling(float(values.max()) if len(values) else 1.0)
    heights = 100 - 100 * values / top
    points = [f"L{i * 10 + 5} {height:.1f}" for i, height in enumerate(heights)]
    last = len(values) * 10
    shape = f"M0 {heights[0]:.1f}" + "".join(points) + f"L{last} {heights[-1]:.1f}"
    area = tag("path", class_="area", d=f"{shape}L{last} 100L0 100Z")
    return _framed(
        [area, tag("path", class_="stroke", d=shape)],
        width=last,
        top=top,
        axis=("0", f"{label}; a point is {width_s:.2g} s", end_label),
        label=label,
        kind="plot low",
    )


def _framed(
    paths: Sequence[Markup],
    *,
    width: int,
    top: float,
    axis: tuple[str, str, str],
    label: str,
    kind: str = "plot",
) -> Markup:
    """Paths in a drawing 100 units high, beside a scale from 0 to `top` and above its axis."""
    return tag(
        "div",
        tag("div", tag("span", f"{top:,.0f}"), tag("span", "0"), class_="y-axis"),
        tag(
            "svg",
            *paths,
            class_=kind,
            viewBox=f"0 0 {width} 100",
            preserveAspectRatio="none",
            role="img",
            aria_label=label,
        ),
        tag("div", *(tag("span", text) for text in axis), class_="x-axis"),
        class_="framed",
    )


def nice_ceiling(value: float) -> float:
    """The smallest of 1, 2, 2.5 or 5 times a power of ten that is not below `value`."""
    if not math.isfinite(value) or value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * 0.9999)


def rectangle(x: float, y: float, width: float, height: float) -> str:
    """A rectangle as a piece of an SVG path."""
    return f"M{x:.1f} {y:.4g}h{max(width, 0.3):.1f}v{height:.4g}h-{max(width, 0.3):.1f}z"


def _columns(floor: Array, tops: Array, columns: int, tallest: int) -> str:
    gap = 1.2 if columns <= 60 else 0.4
    scale = 100 / tallest
    return "".join(
        rectangle(i * 10 + gap / 2, 100 - scale * top, 10 - gap, scale * (top - low))
        for i, (low, top) in enumerate(zip(floor, tops, strict=True))
        if top > low
    )


def _line(percent: float, kind: str) -> Markup:
    return tag("line", class_=kind, x1=_pc(percent), x2=_pc(percent), y1=0, y2="100%")


def _tick_label(percent: float, text: str) -> Markup:
    edge = " first" if percent < 1 else " last" if percent > 99 else ""
    return tag("span", text, class_=f"tick-label{edge}", style=f"left:{percent:.3f}%")


def _pc(percent: float) -> str:
    return f"{percent:.3f}%"
