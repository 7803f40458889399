"""What people and sites read of a card: a Markdown block, and results in the Hub's format."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from hocket.results.card import FILE_NAME, Card, settings_of
from hocket.results.run_protocol import protocol_told
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
    facts = [f"- {_cell(sentence)}" for sentence in protocol_told(known)]
    facts += [f"- {key}: {_told(known[key])}" for key in _FACTS if known.get(key)]
    renderers = {
        facts["gl_renderer"] for facts in known.get("tasks", {}).values() if "gl_renderer" in facts
    }
    if renderers:
        facts.append(f"- renderer: {_cell(', '.join(sorted(renderers)))}")
    names, policy = [str(name) for name in config["env"]], str(config["policy"])
    settings = ", ".join(
        f"{_cell(key)} {_cell(str(value))}" for key, value in settings_of(config).items()
    )
    lines = [
        f"### {_cell(policy)} on {_cell(', '.join(names))}",
        "",
        "| task | n | success | 95 % interval | errors |",
        "|---|---:|---:|---|---:|",
        *rows,
        "",
        report.claim.sentence + ("" if report.complete else " The run is not complete."),
        "",
        f"- settings that are not the defaults: {settings or 'none'}",
        *facts,
        "",
        "Check it, with env and policy of your own choice (the card's names are never imported):",
        "",
        f"    {check_command(config, FILE_NAME)} --sample 50",
        "",
    ]
    return "\n".join(lines)


def check_command(config: Mapping[str, Any], card: str) -> str:
    """The command that checks a card, with every setting of env and policy that its run was
    given, and the interpreters and the runtime that it names."""
    words = ["hocket", "verify", card, "--env", ",".join(map(str, config["env"]))]
    for name in ("policy", "env_python", "policy_python", "runtime"):
        if config.get(name) not in (None, "auto"):
            words += _flag(name, config[name])
    if "file" in str(config.get("perturb")):
        words += _flag("perturb", config["perturb"])
    for group in ("env", "policy"):
        for name, value in (config.get(f"{group}_config") or {}).items():
            words += _flag(f"{group}.{name}", value)
    return shlex.join(" ".join(word.split()) for word in words)


def _flag(name: str, value: Any) -> list[str]:
    """A setting as words of a command line."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        # Only what is not the default is a setting of a run, and a flag turns a default over.
        return [flag if value else flag.replace(".", ".no-", 1)]
    if isinstance(value, (list, tuple)) and not any(isinstance(x, (list, dict)) for x in value):
        return [flag, *map(str, value)]
    text = json.dumps(value) if isinstance(value, (list, dict)) else str(value)
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


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


def eval_results(
    card: Card, suite: str, *, dataset: str, date: str, source: str | None = None
) -> str:
    """The scores of one suite as the Hub reads them in `.eval_results/*.yaml` of a model: the mean
    over its tasks, then each task. Values are success rates in per cent; `source` is the card's
    address."""
    report = card.report
    overall = next(score for score in report.suites if score.suite == suite)
    tasks = [(score.task or "", score) for score in report.tasks if score.suite == suite]
    entries = [
        {
            "dataset": {"id": dataset, "task_id": task},
            "value": round(100 * score.rate, 4),
            "date": date,
            **({"source": {"url": source, "name": "hocket"}} if source else {}),
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
