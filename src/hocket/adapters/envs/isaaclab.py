"""Isaac Lab's manager-based envs as rows: `isaaclab:package.module:make`.

`make(rows)` builds a `ManagerBasedRLEnv` with that many envs, and starts Isaac Sim before it where
that is needed. Its step moves all envs, so rows that wait are put back after it: physics, and all
that managers, terms, actuators and sensors keep for them. With Newton's MuJoCo solver that is
everything (`isaac_newton.py`); with another, what `scene.get_state` tells. The env's own automatic
reset never happens: a row that ended stays where it is until hocket resets it. What its recorder
manager writes holds the rows that moved and no others.

What commands and interval events draw within an episode follows from the seed of the row's reset.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hocket.adapters.envs.isaac_newton import NewtonRows
from hocket.adapters.envs.row_state import Ring, RowAxes, RowState
from hocket.adapters.envs.vector import TensorRows, Vector, VectorConfig, host, pick
from hocket.core.contracts.batched import RowSteps
from hocket.core.data import Array
from hocket.errors import EnvError, SuspensionError
from hocket.workers.inline import Randomness

_AXES = RowAxes(
    first=("isaaclab", "isaaclab_newton", "isaaclab_physx", "isaaclab_tasks", "isaaclab_contrib"),
    others={
        # Time comes first, but for frames that are stacked along an axis of what is seen.
        ("CircularBuffer", "_buffer"): lambda buffer: int(buffer._stack_dim_internal is None),
        ("DelayBuffer", "_buffer"): Ring("_write_index"),
        ("ActuatorNetLSTM", "sea_hidden_state_per_env"): 1,
        ("ActuatorNetLSTM", "sea_cell_state_per_env"): 1,
    },
    latches={("CircularBuffer", "_need_reset"): True, ("SensorBase", "_data_dirty"): True},
    skipped=frozenset({"ProxyArray", "TimestampedBuffer"}),
    # They are made of two steps, and so cannot be computed again.
    but=frozenset({"_joint_acc", "_body_com_acc_w"}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IsaacLabConfig(VectorConfig):
    success_term: str = "success"
    """The termination term that means success; episodes without such a term just finish."""


class IsaacLab(Vector):
    """The suite of the one task that a factory makes."""

    Config: ClassVar = IsaacLabConfig
    _prefix = "isaaclab"
    _makes = "ManagerBasedRLEnv"
    _is_made = False

    def make_rows(self, task: str, rows: int) -> IsaacRows:
        if self._is_made and "isaacsim" in sys.modules:
            raise EnvError(
                "Isaac Sim cannot be built a second time in this process. Start the run again: "
                "`hocket resume` goes on where it was."
            )
        self._is_made = True
        return IsaacRows(self._make(rows), task, self._config.success_term)


class IsaacRows(TensorRows):
    draws = True
    """Whether Isaac Sim's cameras are drawn in a step, which costs more than all else in it."""

    def __init__(self, env: Any, task: str, success_term: str) -> None:
        super().__init__(getattr(env, "unwrapped", env), task)
        self.action_space: Any = getattr(self._env, "single_action_space", None)
        if self.action_space is None or not hasattr(self._env, "termination_manager"):
            kind = type(self._env).__name__
            raise EnvError(f"{kind} is no ManagerBasedRLEnv: it has no managers of its terms.")
        terms = self._env.termination_manager.active_terms
        self._success = success_term if success_term in terms else None
        self._newton = NewtonRows.of(self._env, self.rows)
        skipped = (self._env.sim, self._env.cfg, getattr(self._env, "recorder_manager", None))
        self._kept = RowState({"env": self._env}, self.rows, axes=_AXES, skip=skipped)
        self._seeds = np.zeros(self.rows, np.int64)
        """Of each row's last reset."""
        self._draws = np.zeros(self.rows, np.int64)
        """How often each row drew within its episode."""
        self._moving: Array | None = None
        """Which rows make the step that is being made."""
        self._begin()
        self._key_draws()
        self.notes = tuple(self._noted())

    def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        """Reset the rows one by one: a seed holds for the whole process."""
        del tasks
        self._env.render_enabled = True
        for row, seed in zip(rows.tolist(), seeds, strict=True):
            ids = self._ids([row])
            with self._suspended(np.delete(np.arange(self.rows), row)):
                seen, _ = self._env.reset(seed=int(seed), env_ids=ids)
                self._see(seen, ids)
            self._seeds[row], self._draws[row] = seed, 0

    def step(self, actions: Array, active: Array) -> RowSteps:
        env = self._env
        moving = self._ids(np.flatnonzero(active))
        with (
            self._suspended(np.flatnonzero(~active)),
            self._without_resets(),
            self._recording_only(moving),
        ):
            self._moving, env.render_enabled = active, self.draws
            try:
                seen, rewards, terminated, truncated, _ = env.step(self._actions(actions, active))
            finally:
                self._moving = None
            if self._newton is not None:
                self._newton.check()
            self._see(seen, moving)
            success = None
            if self._success is not None:
                success = host(env.termination_manager.get_term(self._success)).astype(np.bool_)
            return RowSteps(
                host(rewards).astype(np.float64),
                host(terminated).astype(np.bool_),
                host(truncated).astype(np.bool_),
                success,
            )

    def _begin(self) -> None:
        """Have the env make all that it makes when it is first needed, compile, and be what it is
        after a reset: the first of a process, which is another than those that follow, is thrown
        away. Whatever a row did, it is that again before each reset of its own."""
        everyone = self._ids(range(self.rows))
        still = np.zeros((self.rows, *self.action_space.shape), np.float32)
        with self._recording_only(everyone[:0]), self._without_resets():
            self._env.reset(seed=0)
            self._env.step(self._torch.as_tensor(still, device=self._env.device))
            self._env.reset(seed=0)
        fresh = self._take(everyone)
        reset_rows = self._env._reset_idx

        def reset_fresh_rows(ids: Any) -> None:
            self._give_back(ids, fresh, entries=ids)
            reset_rows(ids)

        self._env._reset_idx = reset_fresh_rows

    def _take(self, ids: Any) -> tuple[Any, Any]:
        scene = self._env.scene
        if self._newton is not None:
            physics: Any = self._newton.take(ids)
        else:
            physics = pick(scene.get_state(is_relative=False), ids)
        return physics, self._kept.take(ids)

    def _give_back(self, ids: Any, taken: tuple[Any, Any], entries: Any = None) -> None:
        """`entries`: which of the rows that were taken these are; all of them, in their order."""
        env, (physics, kept) = self._env, taken
        if self._newton is not None:
            self._newton.give_back(ids, physics, entries)
        else:
            state = physics if entries is None else pick(physics, entries)
            env.scene.reset_to(state, env_ids=ids, is_relative=False)
            env.scene.write_data_to_sim()
            env.sim.forward()
        # After that, since `reset_to` writes into joint targets.
        self._kept.give_back(ids, kept, entries)
        for kind in ("articulations", "rigid_objects", "rigid_object_collections"):
            for asset in getattr(env.scene, kind, {}).values():
                for name, buffer in vars(asset.data).items():
                    if type(buffer).__name__ == "TimestampedBuffer" and name not in _AXES.but:
                        buffer.timestamp = -1.0
                if hasattr(asset.data, "_body_state_dirty"):
                    asset.data._body_state_dirty = True

    def _key_draws(self) -> None:
        """Let commands and interval events draw for one row after the other, with numbers that
        follow from the seed of its reset, and for rows that move alone."""
        env = self._env
        for term in env.command_manager._terms.values():
            term._resample = self._keyed(term._resample)
        events = env.event_manager
        apply = events.apply

        def apply_keyed(mode: str, env_ids: Any = None, dt: Any = None, **more: Any) -> None:
            if mode != "interval":
                apply(mode, env_ids=env_ids, dt=dt, **more)
                return
            for index, term in enumerate(events._mode_term_cfgs[mode]):
                left = events._interval_term_time_left[index]
                left -= dt

                def happen(ids: Any, term: Any = term, left: Any = left) -> None:
                    left[ids] = left[ids].uniform_(*term.interval_range_s)
                    term.func(env, ids, **term.params)

                self._keyed(happen)((left < 1e-6).nonzero().flatten())

        for index, term in enumerate(events._mode_term_cfgs.get("interval", ())):
            if term.is_global_time and self.rows > 1:
                raise SuspensionError(
                    f"The event {events._mode_term_names['interval'][index]!r} happens to all rows "
                    "by one clock (is_global_time), which cannot stand still for some of them."
                )
        events.apply = apply_keyed

    def _keyed(self, draw: Callable[[Any], None]) -> Callable[[Any], None]:
        def draw_rows(ids: Any) -> None:
            if self._moving is None:
                draw(ids)
                return
            for row in ids.tolist():
                if self._moving[row]:
                    self._draws[row] += 1
                    key = np.random.SeedSequence([int(self._seeds[row]), int(self._draws[row])])
                    with self._torch.random.fork_rng(), Randomness().apart():
                        self._env.seed(int(key.generate_state(1)[0] >> 1))
                        draw(self._ids([row]))

        return draw_rows

    def _noted(self) -> Iterator[str]:
        """What does not hold of this env."""
        if self._newton is None:
            yield (
                "Isaac Lab's scene state is restored around each step; its solver's memory of "
                "contacts is not part of it."
            )
        groups = getattr(self._env.observation_manager, "_group_obs_term_cfgs", {})
        if any(term.noise is not None for terms in groups.values() for term in terms):
            yield (
                "One generator draws the noise of observations for all rows at once: it does not "
                "follow from the seed of a trial. enable_corruption=False switches it off."
            )

    @contextmanager
    def _without_resets(self) -> Any:
        """Tell the env that no row is done; which are is read from its termination manager."""
        manager = self._env.termination_manager
        compute = manager.compute

        def nobody() -> Any:
            return self._torch.zeros_like(compute())

        manager.compute = nobody
        try:
            yield
        finally:
            manager.compute = compute

    @contextmanager
    def _recording_only(self, ids: Any) -> Any:
        """Keep the env's recorder to these rows, where it would add to all."""
        manager = getattr(self._env, "recorder_manager", None)
        if manager is None or not len(manager.active_terms):
            yield
            return
        add = manager.add_to_episodes

        def add_some(key: str | None, value: Any, env_ids: Any = None) -> None:
            if env_ids is None and key is not None:
                value, env_ids = pick(value, ids), ids
            add(key, value, env_ids)

        manager.add_to_episodes = add_some
        try:
            yield
        finally:
            manager.add_to_episodes = add
