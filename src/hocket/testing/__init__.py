"""Checks that anyone can run on their own envs, suites and policies, and toys to test with.

    from hocket.testing import check_env

    def test_my_env_keeps_the_contract():
        check_env(lambda: MyEnv())

A check raises one ConformanceError (an AssertionError, so test runners show it as a failure) that
lists every rule found broken, each a sentence; `env_findings`, `suite_findings` and
`policy_findings` return the same as a list. Names are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.testing.envs import check_env as check_env
    from hocket.testing.envs import env_findings as env_findings
    from hocket.testing.findings import ConformanceError as ConformanceError
    from hocket.testing.findings import Finding as Finding
    from hocket.testing.policies import check_policy as check_policy
    from hocket.testing.policies import policy_findings as policy_findings
    from hocket.testing.scripted import ScriptedPolicy as ScriptedPolicy
    from hocket.testing.suites import check_suite as check_suite
    from hocket.testing.suites import suite_findings as suite_findings
    from hocket.testing.toy import ToyEnv as ToyEnv
    from hocket.testing.toy import ToySuite as ToySuite

_HOMES = {
    "ConformanceError": "findings",
    "Finding": "findings",
    "ScriptedPolicy": "scripted",
    "ToyEnv": "toy",
    "ToySuite": "toy",
    "check_env": "envs",
    "check_policy": "policies",
    "check_suite": "suites",
    "env_findings": "envs",
    "policy_findings": "policies",
    "suite_findings": "suites",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hocket.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hocket.testing.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
