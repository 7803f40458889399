"""Readers that take the curves of training: TensorBoard's files, which every run has, and
trackers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from hocket.core.contracts.recorder import Followed
from hocket.core.events import Event, Measured


class TensorBoard:
    """Writes the curves to TensorBoard files in the run folder."""

    def __init__(self, _: str, run: Followed) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.resumed_at)

    def on(self, event: Event) -> None:
        if isinstance(event, Measured):
            for key, value in event.values.items():
                self._board.add_scalar(key, value, event.env_steps)

    def close(self) -> None:
        self._board.close()


class Tracker:
    """Logs the curves to a tracker. Closing twice is safe."""

    def __init__(
        self, log: Callable[..., Any], finish: Callable[[], Any], *, has_axis: bool
    ) -> None:
        self._log = log
        self._finish: Callable[[], object] | None = finish
        self._has_axis = has_axis
        """The tracker knows itself that env steps are the x axis."""

    def on(self, event: Event) -> None:
        if isinstance(event, Measured):
            step = {} if self._has_axis else {"step": event.env_steps}
            self._log({**event.values, "env_steps": event.env_steps}, **step)

    def close(self) -> None:
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()


def wandb(project: str, run: Followed) -> Tracker:
    """A reader that logs to Weights & Biases."""
    begun = _init("wandb", project, run)
    # Its own step never goes back, but an evaluation ends after later updates did.
    begun.define_metric("*", step_metric="env_steps")
    return Tracker(begun.log, begun.finish, has_axis=True)


def trackio(project: str, run: Followed) -> Tracker:
    """A reader that logs to Trackio."""
    begun = _init("trackio", project, run)
    return Tracker(begun.log, begun.finish, has_axis=False)


def _init(module: str, project: str, run: Followed) -> Any:
    begin = importlib.import_module(module).init
    return begin(project=project or "hocket", name=run.folder.name, config=dict(run.config))
