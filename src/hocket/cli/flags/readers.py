"""What `--reader` adds to the verbs that make a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.cli.flags.values import Readers
from hocket.core import plugins
from hocket.core.contracts.recorder import Followed
from hocket.errors import UsageError

if TYPE_CHECKING:
    from hocket.core.contracts.recorder import Reader


@dataclass(frozen=True, kw_only=True)
class ReaderFlags:
    """Who follows a run."""

    reader: Readers = ()
    """Let others follow the run; give it again, or commas, for several. otlp or
    otlp=http://HOST:4318 sends spans and metrics to an OpenTelemetry collector; wandb and trackio
    take the curves of training; or your own, as my_readers.py:Mine=ARG."""


def readers_of(flags: ReaderFlags) -> tuple[str, ...]:
    """The readers that the flags name, each of which is there and has what it needs."""
    named = flags.reader
    if len(set(named)) < len(named):
        raise UsageError(f"A reader is named twice in --reader {','.join(named)}.")
    for one in named:
        name = one.partition("=")[0]
        plugins.load("readers", name)
        plugins.require_extra("readers", name)
    return named


def make_readers(named: Sequence[str], run: Followed) -> list[Reader]:
    """The named readers of a run."""
    made = []
    for one in named:
        name, _, argument = one.partition("=")
        made.append(plugins.load("readers", name)(argument, run))
    return made


@contextlib.contextmanager
def following(named: Sequence[str], run: Followed) -> Iterator[list[Reader]]:
    """The named readers of a run, which are closed at the end."""
    with contextlib.ExitStack() as stack:
        made = make_readers(named, run)
        for reader in made:
            stack.callback(reader.close)
        yield made
