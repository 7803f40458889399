"""What the envs of a run are, for exports: as its folder says, or as they say themselves."""

from __future__ import annotations

from collections.abc import Collection

from hocket.core.data import EnvSpec, TaskInfo, Trial
from hocket.errors import HocketError
from hocket.records.ledger.view import LedgerView
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig
from hocket.runs.demonstrations.chosen import ChosenRun, Watcher
from hocket.runs.probe import learn_spec, retried
from hocket.runs.video import refuse_unknown_cameras


class Specs:
    """The specs of a run's envs, by task. A folder of an older version has none: then its envs are
    asked, where they can still be had, and the user is told where they cannot."""

    def __init__(self, run: ChosenRun, watcher: Watcher) -> None:
        self._run = run
        self._watcher = watcher
        with LedgerView.open(run.folder) as ledger:
            self._specs: dict[tuple[str, str], EnvSpec | None] = {**ledger.specs()}
        self._tasks: dict[tuple[str, str], TaskInfo] | None = None
        self._is_told = False

    def get(self, trial: Trial) -> EnvSpec | None:
        """The spec of a trial's env; None where it is not known."""
        key = (trial.suite, trial.task)
        if key not in self._specs:
            try:
                assembly = self._assembly()
                spec = retried(lambda: learn_spec(assembly.runtime(), assembly.worker(), trial))
            except (HocketError, ImportError) as exc:
                self._tell(exc)
                self._specs[key] = None
            else:
                self._specs[key] = spec
        return self._specs[key]

    def may_have_cameras(self, trial: Trial) -> bool:
        """False where the folder says that a trial's env has none."""
        spec = self._specs.get((trial.suite, trial.task))
        # Of rows it says only what the policy reads.
        if spec is None or "batched" in spec.abilities:
            return True
        shapes = [array.shape for array in spec.observations.values()]
        return bool(spec.cameras) or any(len(shape) == 3 and shape[2] in (3, 4) for shape in shapes)

    def refuse_unknown_cameras(self, wanted: Collection[str]) -> None:
        """Raise where the folder says that no env has a camera that was named."""
        refuse_unknown_cameras(wanted, [spec for spec in self._specs.values() if spec is not None])

    def may_be_observed_again(self, trial: Trial) -> bool:
        """False where the folder says that a trial's env cannot be observed without a step."""
        spec = self._specs.get((trial.suite, trial.task))
        return spec is None or "deferred" in spec.abilities

    def task(self, trial: Trial) -> TaskInfo:
        """What is known of a trial's task."""
        key = (trial.suite, trial.task)
        if key not in self._specs:
            # A suite that says everything saves building its env.
            info = self._suites().get(key)
            if info is not None and info.control_rate:
                return info
        spec = self.get(trial)
        return TaskInfo(name=trial.task) if spec is None else spec.task

    def _suites(self) -> dict[tuple[str, str], TaskInfo]:
        if self._tasks is None:
            try:
                found = self._assembly().tasks()
            except (HocketError, ImportError) as exc:
                self._tell(exc)
                found = {}
            self._tasks = {
                (suite, info.name): info for suite, all_ in found.items() for info in all_
            }
        return self._tasks

    def _assembly(self) -> Assembly:
        return Assembly(EvalConfig.from_plain(self._run.config))

    def _tell(self, exc: Exception) -> None:
        if not self._is_told:
            self._is_told = True
            first = str(exc).partition("\n")[0]
            self._watcher.note(
                f"Prompts, control rates and what was observed are known only as far as they were "
                f"recorded, since the env cannot be had: {first}"
            )
