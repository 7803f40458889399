"""YAML that somebody else wrote: whatever it is, it is read, or refused as no YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from hocket.errors import ConfigError

MOST_VALUES = 100_000
"""Values and keys that aliases may make of a file, each counted as often as it is named."""


class BoundedLoader(yaml.SafeLoader):
    """Refuses aliases that make millions of values of a few lines, or a value that holds itself.
    (libyaml's loader, which is faster, ends the process where values are nested deeply.)"""

    _has_aliases = False

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._has_aliases |= bool(self.check_event(yaml.AliasEvent))
        return super().compose_node(parent, index)

    def construct_document(self, node: yaml.Node) -> Any:
        if self._has_aliases:
            _count(node, {})
        return super().construct_document(node)


def load_yaml(text: str, loader: type[BoundedLoader] = BoundedLoader) -> Any:
    """What a text says; yaml.YAMLError, and nothing else, where it is refused."""
    try:
        return yaml.load(text, Loader=loader)
    except (ValueError, OverflowError, RecursionError) as exc:  # as for a number of 5,000 digits
        raise yaml.YAMLError(str(exc)) from exc


def read_yaml(file: str | Path, what: str) -> Any:
    """What a file of a user says. `what` it is stands in the error where it cannot be read."""
    try:
        return load_yaml(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ConfigError(f"{what} {str(file)!r} cannot be read: {exc}") from exc


def _count(node: yaml.Node, known: dict[int, int | None]) -> int:
    """The values in a node. `known` has those of each that was counted; None while it is."""
    if id(node) not in known:
        known[id(node)] = None
        inner: list[yaml.Node] = node.value if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            inner = [one for pair in node.value for one in pair]
        known[id(node)] = 1 + sum(_count(one, known) for one in inner)
    found = known[id(node)]
    if found is None or found > MOST_VALUES:
        what = "holds itself" if found is None else f"stands for more than {MOST_VALUES:,} values"
        raise yaml.constructor.ConstructorError(None, None, f"this {what}", node.start_mark)
    return found
