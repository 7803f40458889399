"""Checks that anyone can run on what they bring to hocket, and toys to test with.

    from hocket.testing import check_env

    def test_my_env_keeps_the_contract():
        check_env(lambda: MyEnv())

There is a check for each contract of `hocket.core.contracts`: `check_policy`, `check_env`,
`check_suite`, `check_batched`, `check_runtime`, `check_reader` and `check_sink`. A check raises one
ConformanceError (an AssertionError, so test runners show it as a failure) that lists every rule
found broken, each a sentence; `env_findings` and its like return the same as a list. Names are
imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.testing.batched import batched_findings, check_batched
    from hocket.testing.envs import check_env, check_suite, env_findings, suite_findings
    from hocket.testing.findings import ConformanceError, Finding
    from hocket.testing.policies import check_policy, policy_findings
    from hocket.testing.recorders import check_reader, check_sink, reader_findings, sink_findings
    from hocket.testing.runtimes import check_runtime, runtime_findings
    from hocket.testing.scripted import ScriptedPolicy
    from hocket.testing.toy import ToyEnv, ToySuite

__all__ = [
    "ConformanceError",
    "Finding",
    "ScriptedPolicy",
    "ToyEnv",
    "ToySuite",
    "batched_findings",
    "check_batched",
    "check_env",
    "check_policy",
    "check_reader",
    "check_runtime",
    "check_sink",
    "check_suite",
    "env_findings",
    "policy_findings",
    "reader_findings",
    "runtime_findings",
    "sink_findings",
    "suite_findings",
]
_MODULES = {
    "batched": ("batched_findings", "check_batched"),
    "envs": ("check_env", "check_suite", "env_findings", "suite_findings"),
    "findings": ("ConformanceError", "Finding"),
    "policies": ("check_policy", "policy_findings"),
    "recorders": ("check_reader", "check_sink", "reader_findings", "sink_findings"),
    "runtimes": ("check_runtime", "runtime_findings"),
    "scripted": ("ScriptedPolicy",),
    "toy": ("ToyEnv", "ToySuite"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"hocket.testing.{module}"), name)
    raise AttributeError(f"module 'hocket.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
