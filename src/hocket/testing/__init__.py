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
    from hocket.testing.batched import batched_findings as batched_findings
    from hocket.testing.batched import check_batched as check_batched
    from hocket.testing.envs import check_env as check_env
    from hocket.testing.envs import check_suite as check_suite
    from hocket.testing.envs import env_findings as env_findings
    from hocket.testing.envs import suite_findings as suite_findings
    from hocket.testing.findings import ConformanceError as ConformanceError
    from hocket.testing.findings import Finding as Finding
    from hocket.testing.policies import check_policy as check_policy
    from hocket.testing.policies import policy_findings as policy_findings
    from hocket.testing.recorders import check_reader as check_reader
    from hocket.testing.recorders import check_sink as check_sink
    from hocket.testing.recorders import reader_findings as reader_findings
    from hocket.testing.recorders import sink_findings as sink_findings
    from hocket.testing.runtimes import check_runtime as check_runtime
    from hocket.testing.runtimes import runtime_findings as runtime_findings
    from hocket.testing.scripted import ScriptedPolicy as ScriptedPolicy
    from hocket.testing.toy import ToyEnv as ToyEnv
    from hocket.testing.toy import ToySuite as ToySuite

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
__all__ = sorted(name for names in _MODULES.values() for name in names)


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"hocket.testing.{module}"), name)
    raise AttributeError(f"module 'hocket.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
