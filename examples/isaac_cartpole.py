"""Isaac Lab's own cartpole on Newton, whose robot is in Newton's wheel."""

from __future__ import annotations

import tempfile
from pathlib import Path

import newton
from isaaclab.envs import ManagerBasedRLEnv
from isaaclab_tasks.core.cartpole.cartpole_common import CartpolePhysicsCfg
from isaaclab_tasks.core.cartpole.cartpole_manager_env_cfg import CartpoleEnvCfg


def make(rows: int) -> ManagerBasedRLEnv:
    # Its default prim is misspelt there.
    usd = Path(newton.__file__).parent / "examples/assets/cartpole_single_pendulum.usda"
    mended = Path(tempfile.mkdtemp()) / "cartpole.usda"
    mended.write_text(usd.read_text().replace('"cartPole"', '"cartpole"'))
    cfg = CartpoleEnvCfg()
    cfg.seed = 0
    cfg.sim.device = "cpu"
    cfg.sim.physics = CartpolePhysicsCfg().newton_mjwarp
    cfg.sim.physics.use_cuda_graph = False
    cfg.scene.num_envs = rows
    cfg.scene.env_spacing = 0.0  # Newton's worlds never touch, and numbers round alike in one place
    cfg.scene.robot.spawn.usd_path = str(mended)
    # These are on a server.
    cfg.scene.ground = cfg.scene.distant_light = None
    return ManagerBasedRLEnv(cfg)
