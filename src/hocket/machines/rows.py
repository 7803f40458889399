"""What a site says of an ended episode, checked, and as the run's ledger takes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from hocket.core.data import Episode, Outcome, Trial
from hocket.core.events import Event
from hocket.errors import WireError
from hocket.machines.protocol import SealedEpisode
from hocket.records.chunks import ChunkRow, ChunkRows

_FIELDS = tuple(field.name for field in dataclasses.fields(ChunkRow))
_TIMES = ("requested", "batched", "inferred", "delivered", "executed")
_SITE = 24
"""Batches are numbered at each site: above so many bits stands the number of the site."""
_ENDED = {outcome.value: outcome for outcome in Outcome if outcome is not Outcome.ERROR}


def plain_rows(rows: Sequence[ChunkRow]) -> list[list[Any]]:
    """Rows as they travel."""
    return [[getattr(row, name) for name in _FIELDS] for row in rows]


class SiteRows(ChunkRows):
    """The chunks of episodes that were run at sites: lanes and batches are numbered over all of
    them, and times are the driver's."""

    def on(self, event: Event) -> None:
        """Ignore the event: rows come with their episodes."""

    def put(
        self,
        trial: Trial,
        attempt: int,
        rows: Sequence[Sequence[Any]],
        *,
        lane: int,
        site: int,
        shift: float,
    ) -> None:
        """Keep the rows of an episode until it is taken. `lane` is the site's first one, `shift`
        the seconds that its clock lags."""
        kept = []
        for values in rows:
            if len(values) != len(_FIELDS):
                raise WireError("A chunk has not the fields that a chunk has.")
            row = ChunkRow(*values)
            row.lane += lane
            if row.batch is not None:
                row.batch |= site << _SITE
            for name in _TIMES:
                at = getattr(row, name)
                if at is not None:
                    setattr(row, name, at + shift)
            kept.append(row)
        self._rows[trial, attempt] = kept


def checked_episode(message: SealedEpisode, trial: Trial, files: tuple[str, ...]) -> Episode:
    """The episode that a site has sent, with the files that came; WireError where it is none."""
    numbers = (message.steps, message.chunks)
    if (
        message.outcome not in _ENDED
        or not all(type(number) is int and number >= 0 for number in numbers)
        or type(message.total_reward) is not float
        or type(message.seconds) is not float
    ):
        raise WireError(f"An episode of {trial.id} is not what an episode is.")
    return Episode(
        trial=trial,
        attempt=message.attempt,
        outcome=_ENDED[message.outcome],
        steps=message.steps,
        total_reward=message.total_reward,
        terminated=bool(message.terminated),
        truncated=bool(message.truncated),
        chunks=message.chunks,
        seconds=message.seconds,
        files=files,
    )
