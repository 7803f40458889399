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
    rows += [_row(score.task or "", score) for score in report.tasks]
    facts = [f"- {key}: {_told(report.provenance[key])}" for key in _FACTS if _has(card, key)]
    renderers = {
        facts["gl_renderer"]
        for facts in report.provenance.get("tasks", {}).values()
        if "gl_renderer" in facts
    }
    if renderers:
        facts.append(f"- renderer: {_cell(', '.join(sorted(renderers)))}")
    names, policy = [str(name) for name in config["env"]], str(config["policy"])
    envs = ", ".join(names)
    lines = [
        f"### {_cell(policy)} on {_cell(envs)}",
        "",
        "| task | n | success | 95 % interval | errors |",
        "|---|---:|---:|---|---:|",
        *rows,
        "",
        f"{report.claim.sentence}" + ("" if report.complete else " The run is not complete."),
        "",
        *facts,
        "",
        "Check it, with env and policy of your own choice (the card's names are never imported):",
        "",
        f"    hocket verify card.json --env {','.join(names)} --policy {policy} --sample 50",
        "",
    ]
    return "\n".join(lines)


def _has(card: Card, key: str) -> bool:
    return bool(card.report.provenance.get(key))


def _row(name: str, score: Score) -> str:
    bounds = interval_text(score.success.interval)
    name = name if name.startswith("**") else _cell(name)
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
    entries = [_entry(card, overall, dataset, task="overall", date=date)]
    entries += [
        _entry(card, score, dataset, task=score.task or "", date=date)
        for score in report.tasks
        if score.suite == suite
    ]
    return yaml.safe_dump([entry for entry in entries if entry], sort_keys=False, width=100)


def _entry(
    card: Card, score: Score, dataset: str, *, task: str, date: str
) -> dict[str, Any] | None:
    if score.rate is None or score.success.interval is None:
        return None
    notes = (
        f"success rate in per cent, n = {score.success.n}, "
        f"95 % interval {interval_text(score.success.interval)}, "
        f"{score.errors} errors (no part of n), hocket {card.report.version}, "
        f"exactness {card.report.exactness}"
    )
    return {
        "dataset": {"id": dataset, "task_id": task},
        "value": round(100 * score.rate, 4),
        "date": date,
        "notes": notes,
    }
