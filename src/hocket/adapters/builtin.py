"""The built-in adapters: where each lives, and what it needs beyond the core.

This is the one place that names them; nothing of them is imported before it is asked for. Adapters
of others are entry points (`core/plugins.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from hocket.core.plugins import Builtin, Kind

BUILTIN: Mapping[Kind, Mapping[str, Builtin]] = {
    "envs": {
        "metaworld": Builtin(
            "hocket.adapters.envs.metaworld:MetaWorld", "metaworld", ("metaworld",)
        ),
        "libero": Builtin("hocket.adapters.envs.libero:Libero", "libero", ("libero", "robosuite")),
        "libero-plus": Builtin(
            "hocket.adapters.envs.libero.plus:LiberoPlus", "libero", ("libero", "robosuite")
        ),
        "libero-pro": Builtin(
            "hocket.adapters.envs.libero.plus:LiberoPro", "libero", ("libero", "robosuite")
        ),
        "robosuite": Builtin(
            "hocket.adapters.envs.robosuite:Robosuite", "robosuite", ("robosuite",)
        ),
        "gym": Builtin("hocket.adapters.envs.gym:Gym"),
        "toy": Builtin("hocket.testing:ToySuite"),
        "mjx": Builtin("hocket.adapters.envs.mjx:Mjx", "mjx", ("mujoco",)),
        "isaaclab": Builtin("hocket.adapters.envs.isaaclab:IsaacLab"),
        "maniskill": Builtin(
            "hocket.adapters.envs.maniskill:ManiSkill", "maniskill", ("mani_skill",)
        ),
        "simpler": Builtin("hocket.adapters.envs.maniskill:Simpler", "maniskill", ("mani_skill",)),
        "vector": Builtin("hocket.adapters.envs.vector:Vector"),
        "lerobot": Builtin("hocket.adapters.envs.lerobot:LeRobotEnvs", "lerobot", ("lerobot",)),
        "vla-eval": Builtin("hocket.adapters.envs.vla_eval:VlaEvalBenchmark"),
    },
    "policies": {
        "reference": Builtin("hocket.adapters.policies.reference:Reference"),
        "reference-mjx": Builtin("hocket.adapters.policies.reference_mjx:MjxReference"),
        "metaworld-expert": Builtin(
            "hocket.adapters.policies.reference:MetaWorldExpert", "metaworld", ("metaworld",)
        ),
        "torch": Builtin("hocket.adapters.policies.torch:load", "torch", ("torch",)),
        "lerobot": Builtin("hocket.adapters.policies.lerobot:load_policy", "lerobot", ("lerobot",)),
        "openpi": Builtin("hocket.adapters.policies.openpi.policy:OpenPI"),
        "vla-eval": Builtin("hocket.adapters.policies.vla_eval:VlaEval"),
        "sidecar": Builtin("hocket.adapters.policies.sidecar:Sidecar"),
        "gr00t": Builtin("hocket.adapters.policies.gr00t:Gr00t", "gr00t", ("zmq",)),
        "actor": Builtin("hocket.train.networks.policies:Actor", "train", ("torch", "tensordict")),
        "flow": Builtin("hocket.train.networks.policies:Flow", "train", ("torch", "tensordict")),
        "trained": Builtin(
            "hocket.train.networks.policies:TrainedPolicy", "train", ("torch", "tensordict")
        ),
        "random": Builtin("hocket.adapters.policies.simple:RandomPolicy"),
        "zero": Builtin("hocket.adapters.policies.simple:ZeroPolicy"),
        "scripted": Builtin("hocket.testing:ScriptedPolicy"),
    },
    "runtimes": {
        "inline": Builtin("hocket.workers.inline:InlineRuntime"),
        "local": Builtin("hocket.workers.local.runtime:LocalRuntime"),
        "docker": Builtin("hocket.workers.containers.runtime:DockerRuntime"),
        "podman": Builtin("hocket.workers.containers.runtime:PodmanRuntime"),
        "ssh": Builtin("hocket.workers.remote.ssh:SshRuntime"),
        "loopback": Builtin("hocket.workers.remote.loopback:LoopbackRuntime"),
        "modal": Builtin("hocket.cloud.modal:ModalRuntime", "modal", ("modal",)),
        "daytona": Builtin("hocket.cloud.daytona:DaytonaRuntime", "daytona", ("daytona",)),
    },
    "recorders": {
        "steps": Builtin("hocket.workers.sinks.steps:StepsSink"),
        "states": Builtin("hocket.workers.sinks.states:StatesSink"),
        "video": Builtin("hocket.workers.sinks.video:VideoSink", modules=("av",)),
    },
    "readers": {
        "otlp": Builtin("hocket.telemetry:Telemetry", "otel", ("opentelemetry",)),
        "wandb": Builtin("hocket.telemetry.trackers:wandb", "wandb", ("wandb",)),
        "trackio": Builtin("hocket.telemetry.trackers:trackio", "trackio", ("trackio",)),
        "mlflow": Builtin("hocket.telemetry.trackers:mlflow", "mlflow", ("mlflow",)),
        "tensorboard": Builtin(
            "hocket.telemetry.trackers:tensorboard", "tensorboard", ("tensorboard", "torch")
        ),
    },
}
