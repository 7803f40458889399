"""What Newton's MuJoCo solver keeps for each row of an Isaac Lab env, by the role it has there.

A scene's own `get_state` and `reset_to` are not enough: `reset_to` rewrites joint targets, and
empties what the solver warm-starts from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from hocket.adapters.envs.row_state import HeldRows, array_of, at_rows
from hocket.errors import EnvError, SuspensionError

_SOLVER = (
    *("time", "qpos", "qvel", "act", "history", "qacc", "qacc_warmstart", "ctrl", "qfrc_applied"),
    *("xfrc_applied", "eq_active", "mocap_pos", "mocap_quat", "userdata"),
)
"""What outlives a step of MuJoCo Warp; the rest follows from it."""
_SENSED = (
    *("total_force", "total_force_friction", "force_matrix", "force_matrix_friction"),
    *("position_matrix", "accelerometer", "gyroscope", "transforms"),
)
_SHARED = ("BROADPHASE", "NARROWPHASE", "CCD")
"""Overflows of buffers that all rows share."""


class NewtonRows:
    """The rows of a Newton that steps with MuJoCo Warp."""

    def __init__(self, manager: Any, rows: int) -> None:
        """`manager`: the physics manager of the env's simulation, a class."""
        self._manager = manager
        self._rows = rows
        model = manager.backend.model
        for kind in ("body", "joint_coord", "joint_dof"):
            starts = getattr(model, f"{kind}_world_start").numpy().tolist()
            size = starts[-1] // rows
            if starts != [*(size * row for row in range(rows + 1)), starts[-1]]:
                raise SuspensionError(
                    f"Newton's worlds are not alike, or share what moves ({kind}: {starts[:5]}): "
                    "rows cannot be put back one by one."
                )
        for actuator, *_ in self._actuators():
            joints = actuator.indices.numpy().reshape(rows, -1)
            if (joints // (model.joint_dof_count // rows) != np.arange(rows)[:, None]).any():
                raise SuspensionError("Newton's actuators do not have the joints of row by row.")

    @classmethod
    def of(cls, env: Any, rows: int) -> NewtonRows | None:
        """Those of an env; None where something else makes its physics."""
        manager: Any = getattr(env.sim, "physics_manager", None)
        solver: Any = getattr(manager, "_solver", None)
        if type(solver).__name__ != "SolverMuJoCo" or solver.use_mujoco_cpu:
            return None
        return cls(manager, rows)

    def take(self, ids: Any) -> list[HeldRows]:
        # What is due to be done with rows that were written to is theirs, and done before.
        self._manager.forward()
        return [
            HeldRows(axis, array[at_rows(array, axis, ids)], head if head is None else head.clone())
            for array, axis, head in self._arrays()
        ]

    def give_back(self, ids: Any, taken: list[HeldRows], entries: Any) -> None:
        for (array, _, head), held in zip(self._arrays(), taken, strict=True):
            held.put(array, ids, entries, head)
        for name in ("_world_reset_mask", "_fk_reset_mask"):
            mask = array_of(getattr(self._manager, name))
            mask[: len(mask) // self._rows * self._rows].view(self._rows, -1)[ids] = False
        self._manager._mark_transforms_changed()

    def check(self) -> None:
        """Raise where something did not fit into a buffer that all rows share: which rows lost a
        contact by that depends on the others."""
        from mujoco_warp import OverflowType  # type: ignore[import-not-found]

        shared = sum(OverflowType[name] for name in _SHARED)
        data = self._manager._solver.mjw_data
        if int((array_of(data.overflow) & shared).max()):
            raise EnvError(
                f"Newton's buffer of {data.naconmax} contacts, which all {self._rows} rows share, "
                "was too small: contacts were lost, and what rows did depends on the others. "
                "Raise nconmax in the MJWarpSolverCfg."
            )

    def _arrays(self) -> Iterator[tuple[Any, int, Any]]:
        """All that the solver, its states, actuators and sensors keep: tensors, the axis of their
        rows, and where rings stand."""
        manager = self._manager
        backend, solver = manager.backend, manager._solver
        array: Any
        for owner in (backend.state_0, backend.state_1, backend.control):
            for thing in (owner, *vars(owner).values()):
                for array in vars(thing).values() if _is_newtons(thing) else ():
                    if _is_array(array):
                        yield self._by_row(array, 0), 0, None
        for name in vars(solver.mjw_data) if solver.enable_sleeping else _SOLVER:
            array = getattr(solver.mjw_data, name, None)
            if _is_array(array) and array.shape[0] == self._rows:
                yield array_of(array), 0, None
        sensors = (manager._newton_imu_sensors, manager._newton_frame_transform_sensors)
        for sensor in (*manager._newton_contact_sensors.values(), *sensors[0], *sensors[1]):
            for name in _SENSED:
                if _is_array(array := getattr(sensor, name, None)):
                    yield self._by_row(array, 0), 0, None
        # An actuator writes into a second state what is its first one in the next step.
        for actuator, *states in self._actuators():
            count = len(actuator.indices)
            parts = [part for each in states for part in (each.delay_state, each.drive_state)]
            for part in filter(None, parts):
                for name, array in vars(part).items():
                    shape = tuple(getattr(array, "shape", ()))
                    if count in shape:
                        # Delays are [time, joints of all rows], and are written in turns.
                        is_ring = name.startswith("buffer_")
                        axis = 1 if is_ring else shape.index(count)
                        head = array_of(part.write_idx) if is_ring else None
                        yield self._by_row(array, axis), axis, head

    def _actuators(self) -> Iterable[tuple[Any, Any, Any]]:
        """Newton's own actuators that keep a state, with both of their states."""
        adapter = self._manager._adapter
        if adapter is None or not adapter.is_stateful:
            return ()
        both = zip(adapter.actuators, adapter._states_a, adapter._states_b, strict=True)
        return (each for each in both if each[1] is not None)

    def _by_row(self, array: Any, axis: int) -> Any:
        return array_of(array).unflatten(axis, (self._rows, -1))


def _is_newtons(thing: Any) -> bool:
    return type(thing).__module__.startswith("newton") and hasattr(thing, "__dict__")


def _is_array(thing: Any) -> bool:
    return type(thing).__name__ == "array" and thing.size > 0
