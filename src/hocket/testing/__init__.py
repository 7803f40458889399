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
    from hocket.testing.envs import env_findings as env_findings
    from hocket.testing.findings import ConformanceError as ConformanceError
    from hocket.testing.findings import Finding as Finding
    from hocket.testing.policies import check_policy as check_policy
    from hocket.testing.policies import policy_findings as policy_findings
    from hocket.testing.readers import check_reader as check_reader
    from hocket.testing.readers import reader_findings as reader_findings
    from hocket.testing.runtimes import check_runtime as check_runtime
    from hocket.testing.runtimes import runtime_findings as runtime_findings
    from hocket.testing.scripted import ScriptedPolicy as ScriptedPolicy
    from hocket.testing.sinks import check_sink as check_sink
    from hocket.testing.sinks import sink_findings as sink_findings
    from hocket.testing.suites import check_suite as check_suite
    from hocket.testing.suites import suite_findings as suite_findings
    from hocket.testing.toy import ToyEnv as ToyEnv
    from hocket.testing.toy import ToySuite as ToySuite

_MODULES = {
    "ConformanceError": "findings",
    "Finding": "findings",
    "ScriptedPolicy": "scripted",
    "ToyEnv": "toy",
    "ToySuite": "toy",
    "batched_findings": "batched",
    "check_batched": "batched",
    "check_env": "envs",
    "check_policy": "policies",
    "check_reader": "readers",
    "check_runtime": "runtimes",
    "check_sink": "sinks",
    "check_suite": "suites",
    "env_findings": "envs",
    "policy_findings": "policies",
    "reader_findings": "readers",
    "runtime_findings": "runtimes",
    "sink_findings": "sinks",
    "suite_findings": "suites",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'hocket.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hocket.testing.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
