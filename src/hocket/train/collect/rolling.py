"""How a configuration collects: its policy, its workers, and how an engine joins them. The run
itself takes them from here, and so do sites that collect for a run elsewhere."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from hocket.core import plugins
from hocket.core.contracts.policy import Policy
from hocket.core.data import Ref, Trial
from hocket.core.specs import PolicySpec
from hocket.engine.batches import BatchConfig
from hocket.engine.chunk_rules import make_rule
from hocket.engine.config import EngineConfig
from hocket.errors import UsageError
from hocket.runs.assembly import Assembly, EnginePlan
from hocket.train.algorithms.stretches import group_of
from hocket.train.collect import plan
from hocket.train.collect.policy import CollectingPolicy
from hocket.train.config import TrainConfig
from hocket.train.networks.building import Description, Made
from hocket.train.networks.memory import twin
from hocket.workers.fleet import Fleet, FleetConfig

_SYNC_BATCH = 16
"""Rows of a synchronous run's batches: a fixed shape, whatever the lanes."""


def base_of(config: TrainConfig, assembly: Assembly) -> Policy | None:
    """The policy that is corrected or steered, where one is."""
    if not config.has_base:
        return None
    base = assembly.policy([assembly.first_trial(config.eval_seed)])
    if config.steer and not base.spec.noise:
        base.close()
        raise UsageError(
            f"Policy {config.policy!r} does not take the noise that its chunks flow from, so that "
            f"nothing can steer it. Flow policies of `hocket train`, LeRobot's SmolVLA, pi0 and "
            f"pi0.5, and servers of either do. Others can be corrected: --residual."
        )
    return base


def policy_of(
    config: TrainConfig, description: Description, base: Policy | None, made: Made
) -> CollectingPolicy:
    """The policy that acts: with the very network that was made, or with a copy of what is trained
    where a learner in this process moves that one."""
    network = made.network
    if config.mode == "sync":
        network = twin(network.to(config.device), config.collect_device)
    is_pinned = config.algo == "grpo" and config.pin_version

    def held_by(trial: Trial) -> Hashable | None:
        return plan.holder_of(trial) or (group_of(trial, config.group) if is_pinned else None)

    return CollectingPolicy(
        network,
        description.shapes,
        evaluated_as=plan.evaluated_as,
        held_by=held_by,
        replan=config.replan,
        device=config.collect_device,
        base=base,
        precision=config.precision,
    )


def max_batch(config: TrainConfig) -> int:
    """In synchronous mode batches are padded to this: a fixed shape, whatever the lanes."""
    is_fixed = config.mode == "sync" and config.lane_count <= _SYNC_BATCH
    return _SYNC_BATCH if is_fixed else max(64, config.lane_count)


def auto_lanes(
    config: TrainConfig, assembly: Assembly, task: plan.Task, policy: CollectingPolicy
) -> int:
    """As many lanes as keep the cores busy, by the cost of one chunk; never more than a batch has
    episodes. In synchronous mode at most as many as its fixed shape holds."""
    trial = Trial(suite=task[0], task=task[1], seed=config.eval_seed)
    lanes = assembly.count_lanes(policy, trial, config.batch_count)
    is_fixed = config.mode == "sync" and not assembly.is_batched
    return min(lanes, _SYNC_BATCH) if is_fixed else lanes


def fleet_of(config: TrainConfig, assembly: Assembly, spec: PolicySpec) -> Fleet:
    """The workers for training, and for evaluations with settings of their own."""
    worker = replace(
        assembly.worker(spec, config.lane_count),
        suites={**assembly.suites, **_evaluated(config, assembly)},
        tells=not config.is_cloning,
    )
    settings = FleetConfig(
        lanes=config.lane_count,
        step_timeout_s=config.step_timeout_s,
        start_timeout_s=config.start_timeout_s,
    )
    return Fleet(assembly.runtime(), worker, settings)


def _evaluated(config: TrainConfig, assembly: Assembly) -> dict[str, Ref]:
    """The suites of evaluations, where these have settings of their own."""
    if not config.eval_env_config:
        return {}
    shares = plugins.share_settings("envs", config.env, config.eval_env_config)
    return {
        plan.EVALUATED + name: replace(ref, config={**ref.config, **shares[name]})
        for name, ref in assembly.suites.items()
    }


def engine_plan(
    config: TrainConfig, policy: CollectingPolicy, *, gives_back: bool = False
) -> EnginePlan:
    """How an engine collects and evaluates. `gives_back`: see EngineConfig."""
    return EnginePlan(
        rule=make_rule(policy.spec.replan, None),
        config=EngineConfig(
            retries=config.retries,
            max_steps=config.max_steps,
            final_observation=True,
            gives_back=gives_back,
        ),
        batching=BatchConfig(pad=config.mode == "sync", keep_observations=not config.is_cloning),
    )
