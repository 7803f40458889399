"""Runs in which the world goes on while the policy thinks: from settings to a timing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.core.contracts.policy import Continues, Policy
from hocket.engine.delays import MEASURED, Delays, sweep
from hocket.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from hocket.engine.delay import DelayPlan
    from hocket.runs.config import EvalConfig


def check_realtime(config: EvalConfig) -> None:
    """Raise where the delay, its method and what goes with them do not fit together."""
    delays = sweep(str(config.delay))
    if len(delays) > 1:
        raise ConfigError(
            f"--delay {config.delay} names {len(delays)} delays, and a run has one: hocket eval "
            "makes a run for each."
        )
    if config.method == "pause":
        if delays[0] == MEASURED or not Delays.parse(delays[0]).is_zero:
            raise ConfigError(
                f"--delay {config.delay} needs a --method, for what happens meanwhile: naive goes "
                "on with the last chunk, blocking holds still, rtc and prefix let the policy "
                "continue what is committed. With pause the world waits."
            )
        if config.first_chunk != "free":
            raise ConfigError("--first-chunk held needs a --delay and a --method.")
    if config.ensemble is not None and config.method not in ("pause", "naive"):
        raise ConfigError(
            f"--ensemble averages chunks with --method naive, and not with {config.method}."
        )
    if config.rtc_config and config.method != "rtc":
        raise ConfigError("The flags --rtc.* belong to --method rtc.")


def timing_of(config: EvalConfig, policy: Policy) -> DelayPlan | None:
    """When answers can be used in this run; None where the world waits. Tells the policy of the
    method, where it has a part in it."""
    if config.method == "pause":
        return None
    from hocket.engine.delay import CONTINUES, DelayPlan  # the engine: not for checking settings

    length = policy.spec.chunk_length
    replan = config.replan or policy.spec.replan
    if replan is None:
        replan = 1 if config.ensemble is not None else length
    if not replan:
        raise ConfigError(
            f"The policy {config.policy!r} does not say how long its chunks are: give --replan."
        )
    method, delays = config.method, Delays.parse(str(config.delay))
    if method in CONTINUES:
        _check_continues(policy, method, config.policy)
    if method == "prefix" and delays.is_zero:
        method = "naive"  # Nothing is committed, so that the policy's own chunks are what it gives.
    timing = DelayPlan(
        method=method,
        delays=delays,
        replan=replan,
        first_chunk=config.first_chunk,
    )
    if timing.delays.unit == "steps":  # Others are checked once an env tells its control rate.
        timing.check(length, None)
    if method in CONTINUES and isinstance(policy, Continues):
        policy.continue_by(method, config.rtc_config)
    return timing


def _check_continues(policy: Policy, method: str, name: str) -> None:
    known = policy.continuations if isinstance(policy, Continues) else ()
    if not isinstance(policy, Continues) or method not in known:
        raise UsageError(
            f"Policy {name!r} cannot continue a chunk by --method {method}"
            + (f" (it knows {' and '.join(known)})" if known else "")
            + ". --method naive works with every policy; docs/realtime.md says what one needs."
        )
    if not policy.spec.chunk_length:
        raise UsageError(f"--method {method} needs a policy that says how long its chunks are.")
