"""Learning curves as pictures, from the folders that learning.py wrote.

    python benchmarks/training/curves.py tasks.svg --panels task --lines algo --x minutes RUNS...
    python benchmarks/training/curves.py modes.svg --panels x --lines mode RUNS...

A curve is the success on the 30 trials that a run evaluates itself on. The band is the 95 %
interval of each point, drawn where a panel has few curves; the thin line is 85 %.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

WIDTH, HEIGHT, MARGIN, TOP = 300, 190, 54, 46
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
UNITS = {"minutes": "minutes of training", "steps": "thousand env steps"}


@dataclass(frozen=True, kw_only=True)
class Picture:
    out: tyro.conf.Positional[Path]
    runs: tyro.conf.Positional[tuple[Path, ...]]
    panels: Literal["task", "x"] = "task"
    """A panel for each task, or one by env steps and one by minutes."""
    lines: Literal["algo", "mode"] = "algo"
    """What colours tell apart."""
    x: Annotated[Literal["minutes", "steps"], tyro.conf.arg(name="x")] = "minutes"
    columns: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    label: str
    x: list[float]
    success: list[float]
    low: list[float]
    high: list[float]


def read_curve(run: Path, label: str, x: str) -> Curve:
    lines = (run / "run" / "metrics.jsonl").read_text().splitlines()
    points = [record for record in map(json.loads, lines) if record["kind"] == "eval"]
    return Curve(
        label=label,
        x=[p["wall_s"] / 60 if x == "minutes" else p["env_steps"] / 1000 for p in points],
        success=[p["eval/success"] for p in points],
        low=[p["eval/success_low"] for p in points],
        high=[p["eval/success_high"] for p in points],
    )


def draw_panel(
    title: str, curves: Sequence[Curve], x_title: str, colours: dict[str, str], place: int, row: int
) -> str:
    left, top = place * (WIDTH + MARGIN) + MARGIN, row * (HEIGHT + 2 * TOP) + TOP
    step = nice_step(max(max(curve.x) for curve in curves))
    last = max(max(curve.x) for curve in curves) * 1.02

    def at(x: float, y: float) -> str:
        return f"{left + WIDTH * x / last:.1f},{top + HEIGHT * (1 - y):.1f}"

    parts = [text(left, top - 8, title, weight="bold")]
    for tick in range(0, 101, 25):
        y = top + HEIGHT * (1 - tick / 100)
        parts += [line(left, y, left + WIDTH, y, "#ddd"), text(left - 6, y + 4, f"{tick} %", "end")]
    for number in range(int(last / step) + 1):
        x = left + WIDTH * number * step / last
        parts.append(text(x, top + HEIGHT + 16, f"{number * step:g}", "middle"))
    parts.append(text(left + WIDTH / 2, top + HEIGHT + 32, x_title, "middle"))
    goal = top + HEIGHT * 0.15
    parts.append(line(left, goal, left + WIDTH, goal, "#888"))
    for curve in curves:
        colour = colours[curve.label]
        if len(curves) <= 2:
            edge = list(zip(curve.x, curve.high, strict=True))
            edge += reversed(list(zip(curve.x, curve.low, strict=True)))
            band = " ".join(at(*point) for point in edge)
            parts.append(f'<polygon points="{band}" fill="{colour}" opacity="0.13"/>')
        points = " ".join(at(*point) for point in zip(curve.x, curve.success, strict=True))
        style = f'fill="none" stroke="{colour}" stroke-width="1.8"'
        parts.append(f'<polyline points="{points}" {style}/>')
    return "\n".join(parts)


def nice_step(largest: float) -> float:
    """Between ticks: about five of them."""
    for size in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if largest / size <= 6:
            return size
    return largest


def text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{words}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="0.8"/>'
    )


def legend(colours: dict[str, str]) -> str:
    parts = []
    for place, (label, colour) in enumerate(colours.items()):
        x = MARGIN + 90 * place
        parts.append(f'<rect x="{x}" y="9" width="16" height="4" fill="{colour}"/>')
        parts.append(text(x + 22, 15, label))
    return "\n".join(parts)


def main(picture: Picture) -> None:
    about: list[dict[str, Any]] = [
        json.loads((r / "result.json").read_text()) for r in picture.runs
    ]
    labels = [one[picture.lines] for one in about]
    colours = dict(zip(dict.fromkeys(labels), COLOURS, strict=False))
    panels: list[tuple[str, str, list[Curve]]] = []
    if picture.panels == "task":
        for task in dict.fromkeys(one["task"] for one in about):
            mine = zip(picture.runs, about, labels, strict=True)
            curves = [read_curve(r, w, picture.x) for r, one, w in mine if one["task"] == task]
            panels.append((task, UNITS[picture.x], curves))
    else:
        for x in ("steps", "minutes"):
            curves = [read_curve(r, w, x) for r, w in zip(picture.runs, labels, strict=True)]
            panels.append((f"{about[0]['task']}, by {x}", UNITS[x], curves))
    rows = -(-len(panels) // picture.columns)
    width = picture.columns * (WIDTH + MARGIN) + MARGIN // 2
    height = rows * (HEIGHT + 2 * TOP)
    drawn = [
        draw_panel(title, curves, unit, colours, place % picture.columns, place // picture.columns)
        for place, (title, unit, curves) in enumerate(panels)
    ]
    picture.out.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="11" fill="#222">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n'
        f"{legend(colours)}\n" + "\n".join(drawn) + "\n</svg>\n"
    )


if __name__ == "__main__":
    main(tyro.cli(Picture))
