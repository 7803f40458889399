"""The limit of open files is raised as far as it may be, or said before a lane starts."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

ALLOW = """
import resource
from hocket.errors import UsageError
from hocket.system import limits
try:
    limits.allow({workers}, "lane")
except UsageError as error:
    print(error)
else:
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def run(soft: int, hard: int, *words: str, cwd: Path | None = None) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, *words],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )
    return done.stdout, done.stderr


def test_the_soft_limit_is_raised_and_never_lowered() -> None:
    assert run(300, 4000, "-c", ALLOW.format(workers=8))[0] == "4000 4000\n"
    assert run(4000, 4000, "-c", ALLOW.format(workers=8))[0] == "4000 4000\n"


def test_too_many_lanes_are_told_with_how_many_may_be(tmp_path: Path) -> None:
    said, _ = run(300, 500, "-c", ALLOW.format(workers=62))
    assert "62 lanes need about 504 open files, and this process may have 500." in said
    assert "at most 61 lanes" in said
    assert "ulimit -Hn 504" in said
    words = "-m hocket eval --env toy:count --policy zero --episodes 80 --lanes 62 --out run"
    out, err = run(300, 500, *words.split(), cwd=tmp_path)
    assert "Use at most 61 lanes" in err
    assert "Traceback" not in out + err
    assert "lanes are up" not in err
