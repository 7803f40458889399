"""Readers that take the curves of training: TensorBoard's files, which every run has, and
trackers."""

from __future__ import annotations

import importlib
from collections.abc import Callable

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
    """Logs the curves to the tracker `module`, by its functions. Closing twice is safe."""

    def __init__(self, module: str, project: str, run: Followed, *, has_axis: bool) -> None:
        """`has_axis`: the tracker is told once that env steps are the x axis. Its own step never
        goes back, but an evaluation ends after later updates did."""
        begin = importlib.import_module(module).init
        begun = begin(project=project or "hocket", name=run.folder.name, config=dict(run.config))
        self._log, self._has_axis = begun.log, has_axis
        self._finish: Callable[[], object] | None = begun.finish
        if has_axis:
            begun.define_metric("*", step_metric="env_steps")

    def on(self, event: Event) -> None:
        if isinstance(event, Measured):
            step = {} if self._has_axis else {"step": event.env_steps}
            self._log({**event.values, "env_steps": event.env_steps}, **step)

    def close(self) -> None:
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()


def wandb(project: str, run: Followed) -> Tracker:
    return Tracker("wandb", project, run, has_axis=True)


def trackio(project: str, run: Followed) -> Tracker:
    return Tracker("trackio", project, run, has_axis=False)
