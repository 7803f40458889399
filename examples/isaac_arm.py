"""An arm that moves its hand to a goal past a loose block: `--env isaaclab:isaac_arm:make`.

It has what makes rows hard to hold: targets of positions and efforts, an actuator that acts late, a
command that is drawn again within an episode, a history, and contacts with their clocks.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import isaaclab.envs.mdp as mdp
import isaaclab.sim as sim_utils
import torch
from isaaclab.actuators import DelayedPDActuatorCfg, ImplicitActuatorCfg
from isaaclab.assets import ArticulationCfg, AssetBaseCfg, RigidObjectCfg
from isaaclab.envs import ManagerBasedRLEnv, ManagerBasedRLEnvCfg
from isaaclab.managers import (
    EventTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
)
from isaaclab.scene import InteractiveSceneCfg
from isaaclab.sensors import ContactSensorCfg
from isaaclab.utils import configclass
from isaaclab_newton.physics import MJWarpSolverCfg, NewtonCfg

from isaac_arm_usd import FINGER, write_arm

USD = Path(tempfile.mkdtemp()) / "arm.usda"
write_arm(USD)


@configclass
class Scene(InteractiveSceneCfg):
    ground = AssetBaseCfg(
        prim_path="/World/ground",
        spawn=sim_utils.CuboidCfg(
            size=(4.0, 4.0, 0.1), collision_props=sim_utils.UsdPhysicsCollisionCfg()
        ),
        init_state=AssetBaseCfg.InitialStateCfg(pos=(0.0, 0.0, -0.05)),
    )
    robot = ArticulationCfg(
        prim_path="{ENV_REGEX_NS}/Robot",
        spawn=sim_utils.UsdFileCfg(usd_path=str(USD)),
        init_state=ArticulationCfg.InitialStateCfg(
            pos=(0.0, 0.0, 0.04), joint_pos={"shoulder": 0.8, "elbow": 1.3}
        ),
        actuators={
            "late": DelayedPDActuatorCfg(
                joint_names_expr=["yaw", "shoulder"],
                joint_effort_limit=20.0,
                stiffness=40.0,
                damping=4.0,
                min_delay=0,
                max_delay=3,
            ),
            "elbow": ImplicitActuatorCfg(joint_names_expr=["elbow"], stiffness=0.0, damping=0.4),
            "hand": ImplicitActuatorCfg(
                joint_names_expr=[".*_finger"], stiffness=200.0, damping=10.0
            ),
        },
    )
    block = RigidObjectCfg(
        prim_path="{ENV_REGEX_NS}/Block",
        spawn=sim_utils.CuboidCfg(
            size=(0.04, 0.03, 0.06),
            rigid_props=sim_utils.UsdPhysicsRigidBodyCfg(),
            mass_props=sim_utils.MassCfg(mass=0.05),
            collision_props=sim_utils.UsdPhysicsCollisionCfg(),
        ),
        init_state=RigidObjectCfg.InitialStateCfg(pos=(0.36, 0.0, 0.031)),
    )
    touch = ContactSensorCfg(prim_path="{ENV_REGEX_NS}/Robot/(left|right)", track_air_time=True)


@configclass
class Actions:
    arm = mdp.JointPositionActionCfg(
        asset_name="robot", joint_names=["yaw", "shoulder"], scale=0.3, use_default_offset=True
    )
    elbow = mdp.JointEffortActionCfg(asset_name="robot", joint_names=["elbow"], scale=1.5)
    hand = mdp.JointPositionActionCfg(asset_name="robot", joint_names=[".*_finger"], scale=0.01)


@configclass
class Commands:
    goal = mdp.UniformPoseCommandCfg(
        asset_name="robot",
        body_name="left",
        resampling_time_range=(0.6, 1.2),
        ranges=mdp.UniformPoseCommandCfg.Ranges(
            pos_x=(0.2, 0.4),
            pos_y=(-0.2, 0.2),
            pos_z=(0.05, 0.25),
            roll=(0.0, 0.0),
            pitch=(0.0, 0.0),
            yaw=(0.0, 0.0),
        ),
    )


def air_time(env: ManagerBasedRLEnv) -> torch.Tensor:
    """How long each finger has not touched anything, in seconds."""
    return env.scene["touch"].data.current_air_time.torch.clone()


def distance(env: ManagerBasedRLEnv) -> torch.Tensor:
    """From the left finger to the goal, in the frame of the base."""
    robot = env.scene["robot"]
    body = robot.body_names.index("left")
    hand = robot.data.body_pos_w.torch[:, body] - robot.data.root_pos_w.torch
    return (hand - env.command_manager.get_command("goal")[:, :3]).norm(dim=1)


def is_near(env: ManagerBasedRLEnv) -> torch.Tensor:
    return distance(env) < max(FINGER)


@configclass
class Policy(ObservationGroupCfg):
    joints = ObservationTermCfg(func=mdp.joint_pos_rel, history_length=3)
    speeds = ObservationTermCfg(func=mdp.joint_vel_rel)
    goal = ObservationTermCfg(func=mdp.generated_commands, params={"command_name": "goal"})
    last = ObservationTermCfg(func=mdp.last_action)
    air = ObservationTermCfg(func=air_time)
    block = ObservationTermCfg(func=mdp.body_pose_w, params={"asset_cfg": SceneEntityCfg("block")})


@configclass
class Observations:
    policy: Policy = Policy()


@configclass
class Events:
    joints = EventTermCfg(
        func=mdp.reset_joints_by_offset,
        mode="reset",
        params={"position_range": (-0.2, 0.2), "velocity_range": (-0.1, 0.1)},
    )
    block = EventTermCfg(
        func=mdp.reset_root_state_uniform,
        mode="reset",
        params={
            "asset_cfg": SceneEntityCfg("block"),
            "pose_range": {"x": (-0.03, 0.03), "y": (-0.05, 0.05), "yaw": (-1.0, 1.0)},
            "velocity_range": {},
        },
    )


@configclass
class Rewards:
    near = RewardTermCfg(func=distance, weight=-1.0)


@configclass
class Terminations:
    time_out = TerminationTermCfg(func=mdp.time_out, time_out=True)
    success = TerminationTermCfg(func=is_near)


@configclass
class ArmCfg(ManagerBasedRLEnvCfg):
    # Newton's worlds never touch: all may stand in one place, where numbers round alike.
    scene: Scene = Scene(num_envs=1, env_spacing=0.0)
    actions: Actions = Actions()
    commands: Commands = Commands()
    observations: Observations = Observations()
    events: Events = Events()
    rewards: Rewards = Rewards()
    terminations: Terminations = Terminations()

    def __post_init__(self) -> None:
        self.seed = 0
        self.decimation = 2
        self.episode_length_s = 4.0
        self.sim.dt = 0.01
        self.sim.device = "cpu"
        self.sim.physics = NewtonCfg(
            solver_cfg=MJWarpSolverCfg(
                njmax=120, nconmax=40, cone="elliptic", integrator="implicitfast"
            ),
            num_substeps=2,
            use_cuda_graph=False,
        )


def make(rows: int) -> ManagerBasedRLEnv:
    cfg = ArmCfg()
    cfg.scene.num_envs = rows
    return ManagerBasedRLEnv(cfg)
