"""What people and sites read of a card: a Markdown block, and results in the Hub's format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from hocket.results.card import Card
from hocket.results.scores import Score
from hocket.results.tables import interval_text, percent

_FACTS = ("versions", "hardware", "chunks", "code", "policy", "files")


def markdown(card: Card) -> str:
    """A block for a model's page: the rates, what they depend on, and how to check them."""
    report = card.report
    config = report.config
    rows = [_row("**overall**", report.overall)]
    rows += [_row(_cell(score.task or ""), score) for score in report.tasks]
    known = report.provenance
    facts = [f"- {key}: {_told(known[key])}" for key in _FACTS if known.get(key)]
    renderers = {
        facts["gl_renderer"] for facts in known.get("tasks", {}).values() if "gl_renderer" in facts
    }
    if renderers:
        facts.append(f"- renderer: {_cell(', '.join(sorted(renderers)))}")
    names, policy = [str(name) for name in config["env"]], str(config["policy"])
    lines = [
        f"### {_cell(policy)} on {_cell(', '.join(names))}",
        "",
        "| task | n | success | 95 % interval | errors |",
        "|---|---:|---:|---|---:|",
        *rows,
        "",
        report.claim.sentence + ("" if report.complete else " The run is not complete."),
        "",
        *facts,
        "",
        "Check it, with env and policy of your own choice (the card's names are never imported):",
        "",
        f"    hocket verify card.json --env {','.join(names)} --policy {policy} --sample 50",
        "",
    ]
    return "\n".join(lines)


def _row(name: str, score: Score) -> str:
    bounds = interval_text(score.success.interval)
    return f"| {name} | {score.success.n} | {percent(score.rate)} | {bounds} | {score.errors} |"


def _told(value: Any) -> str:
    """A mapping as one line: `name value, name value`."""
    if isinstance(value, Mapping):
        parts = [
            f"{key} {_told(each) if not isinstance(each, Mapping) else f'({_told(each)})'}"
            for key, each in value.items()
            if each is not None
        ]
        return ", ".join(parts)
    if isinstance(value, (list, tuple)):
        return " ".join(map(_told, value))
    return _cell(str(value))


def _cell(text: str) -> str:
    """Text that can neither end a cell nor begin a link or a tag in Markdown."""
    return re.sub(r"([\\`*_\[\]<>|!#])", r"\\\1", " ".join(text.split()))


def eval_results(card: Card, suite: str, *, dataset: str, date: str) -> str:
    """The scores of one suite as the Hub reads them in `.eval_results/*.yaml` of a model: the mean
    over its tasks, then each task. Values are success rates in per cent."""
    report = card.report
    overall = next(score for score in report.suites if score.suite == suite)
    tasks = [(score.task or "", score) for score in report.tasks if score.suite == suite]
    entries = [
        {
            "dataset": {"id": dataset, "task_id": task},
            "value": round(100 * score.rate, 4),
            "date": date,
            "notes": (
                f"success rate in per cent, n = {score.success.n}, "
                f"95 % interval {interval_text(score.success.interval)}, "
                f"{score.errors} errors (no part of n), hocket {report.version}, "
                f"exactness {report.exactness}"
            ),
        }
        for task, score in [("overall", overall), *tasks]
        if score.rate is not None
    ]
    return yaml.safe_dump(entries, sort_keys=False, width=100)
