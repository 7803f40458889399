"""LIBERO's simulation of a task, without cameras, whose soft reset equals a hard one to the bit.

LIBERO and robosuite are imported here without what they do on import: ask questions on the
terminal, load OpenGL, and write a log to a fixed path.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

from hocket.adapters.envs.libero.data import LiberoData, find_data
from hocket.adapters.envs.rendering import no_gl_at_import, variable
from hocket.core.data import Array
from hocket.workers.env.simulator_model import model_digest


def _import_libero() -> Any:
    """The module `libero.libero.envs`, with LIBERO's paths set to the data on this machine."""
    data = find_data()
    _tame_robosuite()
    with no_gl_at_import():
        package = _import_package(data)
        return importlib.import_module(f"{package.__name__}.envs")


def _tame_robosuite() -> None:
    """Load robosuite's macros before robosuite, which reads them once and for all."""
    if "robosuite" in sys.modules:
        return
    package = importlib.util.find_spec("robosuite")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'robosuite'", name="robosuite")
    file = Path(package.submodule_search_locations[0]) / "macros.py"
    spec = importlib.util.spec_from_file_location("robosuite.macros", file)
    assert spec is not None
    assert spec.loader is not None
    macros: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(macros)
    macros.MUJOCO_GPU_RENDERING = False
    macros.FILE_LOGGING_LEVEL = None
    sys.modules["robosuite.macros"] = macros


def _import_package(data: LiberoData) -> Any:
    """`libero.libero`, which prompts unless it finds a configuration."""
    paths = {
        "benchmark_root": str(data.bddl_files.parent),
        "bddl_files": str(data.bddl_files),
        "init_states": str(data.init_states),
        "datasets": str(data.bddl_files.parent / "datasets"),
        "assets": str(data.assets),
    }
    with tempfile.TemporaryDirectory(prefix="hocket-libero-") as folder:
        lines = [f"{key}: {path!r}\n" for key, path in paths.items()]
        Path(folder, "config.yaml").write_text("".join(lines))
        with variable("LIBERO_CONFIG_PATH", folder):
            package: Any = importlib.import_module("libero.libero")
    # hf-libero looks for its assets here first, and would download them; its configuration file is
    # gone, so that other paths are told from here too.
    package._assets_path_cache = paths["assets"]
    package.get_libero_path = paths.__getitem__
    return package


envs = _import_libero()
import mujoco  # noqa: E402 - after LIBERO, which is imported without OpenGL
import robosuite  # noqa: E402
from robosuite.utils.errors import RandomizationError  # noqa: E402

__all__ = ["RandomizationError", "make_simulation", "mujoco"]

_VELOCITY_STAGE = int(mujoco.mjtStage.mjSTAGE_VEL)
_CHANGED_FIELDS = ("body_pos", "body_quat", "site_rgba")
"""What resets and steps change in a compiled model."""


def make_simulation(bddl_file: str, *, hard_reset: bool) -> Any:
    """An object of the LIBERO class for the file's kind of scene."""
    problem = envs.env_wrapper.BDDLUtils.get_problem_info(bddl_file)["problem_name"]
    kind = envs.TASK_MAPPING[problem]
    # LIBERO compares the name of the class with the file's.
    traced: Any = type(kind.__name__, (_Traced, kind), {})
    return traced(
        bddl_file,
        robots=["Panda"],
        controller_configs=robosuite.load_controller_config(default_controller="OSC_POSE"),
        initialization_noise=None,
        use_camera_obs=False,
        has_renderer=False,
        has_offscreen_renderer=False,
        control_freq=20,
        ignore_done=True,
        hard_reset=hard_reset,
    )


class _Traced:
    """Remembers the model as it was compiled, and begins every episode from that."""

    sim: Any
    model_sha256 = ""
    """The digest of the model as it was first compiled."""
    hard_reset: bool
    object_property_initializers: list[Any]
    _pre_action: Any

    def _load_model(self) -> None:
        # LIBERO adds to this list each time, and so draws more numbers after every hard reset.
        self.object_property_initializers.clear()
        super()._load_model()  # type: ignore[misc]

    def _initialize_sim(self, xml_string: str | None = None) -> None:
        super()._initialize_sim(xml_string)  # type: ignore[misc]
        model = self.sim.model._model
        self.model_sha256 = self.model_sha256 or model_digest(model)
        self._pristine = {name: getattr(model, name).copy() for name in _CHANGED_FIELDS}
        self.sim.reset = self._start_over
        self.sim.forward = self._forward
        self._is_derived = False
        # As robosuite does when it makes a renderer: it moves the solver's warm start.
        self.sim.forward()

    def tick(self, command: Array, *, is_first: bool) -> Array:
        """One tick of MuJoCo's, as robosuite takes it; gives the positions from which it went.

        robosuite derives everything from them three times: before the controller, in it, and in
        MuJoCo's step. The second and the third time only forces have changed, so that what follows
        from positions and velocities (contacts, above all) is left as it is, to the same bits.
        """
        model, data = self.sim.model._model, self.sim.data._data
        mujoco.mj_forward(model, data)
        self._is_derived = True
        try:
            self._pre_action(command, is_first)
        finally:
            self._is_derived = False
        before: Array = data.qpos.copy()
        if model.opt.integrator != mujoco.mjtIntegrator.mjINT_EULER:
            mujoco.mj_step(model, data)
            return before
        # The parts of mj_step, in its order.
        mujoco.mj_checkPos(model, data)
        mujoco.mj_checkVel(model, data)
        mujoco.mj_forwardSkip(model, data, _VELOCITY_STAGE, 0)
        mujoco.mj_checkAcc(model, data)
        mujoco.mj_Euler(model, data)
        return before

    def _forward(self) -> None:
        model, data = self.sim.model._model, self.sim.data._data
        if self._is_derived:
            mujoco.mj_forwardSkip(model, data, _VELOCITY_STAGE, 0)
        else:
            mujoco.mj_forward(model, data)

    def _start_over(self) -> None:
        """What a soft reset does in place of compiling: the same state, the solver's included."""
        model, data = self.sim.model._model, self.sim.data._data
        for name, values in self._pristine.items():
            getattr(model, name)[:] = values
        mujoco.mj_resetData(model, data)
        for _ in range(2):
            mujoco.mj_forward(model, data)
