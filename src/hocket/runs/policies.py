"""A subject's policy: found by name, held to its outline, and given its threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from hocket.core import plugins
from hocket.core.contracts.policy import Loads, Policy, Replicas, Sessions
from hocket.core.specs import PolicySpec
from hocket.engine.inferring.deadline import InferDeadline
from hocket.engine.inferring.inference import Inference
from hocket.engine.inferring.policy_thread import words
from hocket.errors import HocketError, PolicyError, UsageError
from hocket.runs.subject import Subject
from hocket.system.text import account
from hocket.system.waits import awaiting

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.05
"""Seconds between two looks at workers that start while a policy loads."""


def load_policy(subject: Subject, look: Callable[[], None] = lambda: None) -> Policy:
    """The policy, in an interpreter of its own where the subject names one. While it loads there,
    `look` is called again and again; what that raises ends it."""
    name, settings = subject.policy, subject.policy_config
    if subject.policy_python is not None:
        name = f"sidecar:{name}"
        settings = {"python": subject.policy_python, "config": dict(settings)}
    with awaiting(f"the policy {subject.policy} to load"):
        built = build_policy(name, settings)
        if isinstance(built, Loads):
            return _looking(built, subject.policy, look)
        built = require_policy(built, subject.policy)
        _ = built.spec  # a policy over the wire connects here
    return built


def _looking(built: Any, name: str, look: Callable[[], None]) -> Policy:
    """The policy once its process has loaded it; `look` is called in this thread meanwhile."""
    end = built.begin_loading()
    with ThreadPoolExecutor(1, thread_name_prefix="hocket-loading") as thread:
        try:
            loading = thread.submit(require_policy, built, name)
            while not wait([loading], _LOOK_S).done:
                look()
            return loading.result()
        except BaseException:
            end()
            built.close()
            raise


def close_policy(policy: Policy, name: str) -> None:
    """Close a policy that is done with; where that fails it is told and nothing else."""
    try:
        with words():
            policy.close()
    except HocketError as exc:
        _LOG.warning("Policy %r was not closed: %s", name, exc)


def require_files(subject: Subject) -> None:
    """Raise where a policy's checkpoint is not at hand, before an interpreter is started for it."""
    if not plugins.is_plain("policies", subject.policy):
        adapter = plugins.find("policies", subject.policy)
        if (require_data := getattr(adapter.build, "require_data", None)) is not None:
            require_data(adapter.argument)


def build_policy(name: str, settings: Mapping[str, Any]) -> Any:
    """The policy of a name; what its maker raises comes as PolicyError, with the maker's lines."""
    try:
        return plugins.build("policies", name, settings)
    except (HocketError, KeyboardInterrupt):
        raise
    except BaseException as exc:
        raise PolicyError(f"Policy {name!r} cannot be made: {account(exc)}") from exc


def require_policy(policy: Any, name: str) -> Policy:
    """The object itself, where it has the outline of a policy; an error says what it lacks."""
    plugins.refuse_answering(policy)
    if isinstance(policy, type):
        raise PolicyError(f"{name!r} is a class: give an object, {policy.__name__}(...).")
    with words():
        # What a property raises is not that it lacks one.
        spec = policy.spec if hasattr(type(policy), "spec") else getattr(policy, "spec", None)
    lacks = [] if isinstance(spec, PolicySpec) else ["`spec`, a hocket.PolicySpec"]
    lacks += [
        f"the method `{method}`"
        for method in ("infer(batch)", "close()")
        if not callable(getattr(policy, method.partition("(")[0], None))
    ]
    if lacks:
        advice = "hocket.testing.check_policy(policy) tests the whole contract."
        if any(cls.__module__.startswith("torch.") for cls in type(policy).__mro__):
            advice = (
                f"A torch module becomes one as torch:{name}, or as an object by "
                "hocket.adapters.policies.torch.TorchPolicy(module, chunk_length=...)."
            )
        raise PolicyError(
            f"{name!r} is no policy: {type(policy).__name__!r} lacks {' and '.join(lacks)}. "
            f"{advice}"
        )
    found: Policy = policy
    return found


def inference_of(
    subject: Subject, policy: Policy, *, alone: bool, timeout_s: float | None
) -> Inference:
    """Threads for the policy, or for its copies on the devices that the subject names. Chunks
    carry the name of the copy that made them. Where rows are inferred `alone`, one call runs at a
    time; one that takes longer than `timeout_s` is given up."""
    name, devices = subject.policy, subject.policy_devices
    deadline = InferDeadline(seconds=timeout_s)
    if not devices:
        return Inference([policy], [name], one_at_a_time=alone, deadline=deadline)
    if not isinstance(policy, Replicas):
        raise UsageError(
            f"Policy {name!r} cannot stand on several devices; leave out --policy-devices."
        )
    if isinstance(policy, Sessions) and len(devices) > 1:
        raise UsageError(
            f"Policy {name!r} keeps state for each episode, which one copy of it alone would "
            "know: name one device in --policy-devices."
        )
    if alone and len(devices) > 1:
        raise UsageError(
            f"--exact asks one copy of policy {name!r} for one row at a time: name one device "
            "in --policy-devices."
        )
    copies = policy.replicas(devices)
    return Inference(copies, devices, one_at_a_time=alone, deadline=deadline)
