"""A delay that is measured once, on this machine, and fixed from then on."""

from __future__ import annotations

from dataclasses import replace

from hocket.core.data import Trial
from hocket.engine.delays import MEASURED
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig
from hocket.runs.probe import probe, retried


def fixed_delay(config: EvalConfig) -> EvalConfig:
    """The configuration with what this machine was measured to take, where it asks for that: the
    seconds in which the policy answers one row, its first trial's."""
    if config.delay != MEASURED:
        return config
    assembly = Assembly(config, config.lanes)
    suite, tasks = next(iter(assembly.tasks().items()))
    trial = Trial(suite=suite, task=tasks[0].name, seed=config.seed)
    policy = assembly.policy()
    try:
        worker = assembly.worker(policy.spec)
        timeout_s = config.start_timeout_s
        seen = retried(
            lambda: probe(
                assembly.runtime(), worker, policy, trial, replan=config.replan, timeout_s=timeout_s
            )
        )
    finally:
        policy.close()
    return replace(config, delay=f"{1000 * seen.latencies[1]:.1f}ms")
