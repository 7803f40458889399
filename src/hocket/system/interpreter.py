"""Whether another interpreter can host envs."""

from __future__ import annotations

import json
import shutil
import subprocess

from hocket.errors import UsageError

_EXAMINE = """
import importlib.util, json, sys
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print(json.dumps({"version": sys.version_info[:2], "missing": missing}))
"""
_NEEDED = ("numpy",)
_OLDEST = [3, 10]


def examine_python(python: str, *wanted: str) -> list[str]:
    """Which of the wanted modules another interpreter lacks; refuses one that cannot host envs."""
    executable = shutil.which(python)
    if executable is None:
        raise UsageError(f"There is no Python interpreter at {python!r}. Check --env-python.")
    command = [executable, "-c", _EXAMINE, *_NEEDED, *wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        answer = json.loads(done.stdout)
        version, missing = answer["version"], answer["missing"]
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{python!r} is no Python interpreter. Check --env-python.") from error
    if version < _OLDEST:
        raise UsageError(
            f"--env-python {python} is Python {version[0]}.{version[1]}; workers need 3.10 or "
            "later."
        )
    needed = [name for name in _NEEDED if name in missing]
    if needed:
        raise UsageError(
            f"--env-python {python} lacks {' and '.join(needed)}. Run: {python} -m pip install "
            f"{' '.join(needed)}"
        )
    return [name for name in wanted if name in missing]
