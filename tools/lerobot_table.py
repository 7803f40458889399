"""Writes the table of LeRobot's policy classes in docs/lerobot.md, from what the checks find.

    python tools/lerobot_table.py

Needs venvs/lerobot, and adds what venvs/lerobot-0.4 finds where that is there (hocket venv).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from adapters.policies.test_lerobot import CHECKS_04, CHECKS_06  # noqa: E402
from hocket.adapters.policies.lerobot.folder import REFUSED  # noqa: E402

DOCUMENT = ROOT / "docs" / "lerobot.md"
VENVS = {"0.4.4": ("lerobot-0.4", CHECKS_04), "0.6.1": ("lerobot", CHECKS_06)}
BATCHED = {
    "tdmpc": "row by row: its planner draws across the batch",
    "sac": "one batch at every step",
    "gaussian_actor": "one batch at every step",
    "act": "one batch; with its ensemble at every step",
    "fastwam": "row by row, as its class does itself",
}
WHY_NOT = {
    "groot": "asked, never run: it is built around Qwen3-VL and GR00T N1.7 of the hub",
    "molmoact2": "asked, never run: it is built around a checkpoint of Ai2's on the hub",
    "wall_x": "asked, never run: it is built around wall-oss-flow of the hub, in bfloat16",
    **{kind: f"refused: {why}" for kind, why in REFUSED.items()},
}


def facts_of(venv: str, checks: list[str]) -> Any:
    """What the checks say in a venv; None where that is not there."""
    python = ROOT / "venvs" / venv / "bin" / "python"
    if not (python.parents[1] / ".ready").exists():
        return None
    done = subprocess.run(
        [str(python), str(ROOT / "tests" / "support" / "lerobot_checks.py"), *checks],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:2]), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    broken = re.findall(r"^broken \w+", done.stdout, re.M)
    if broken:
        raise SystemExit(f"{venv}: {', '.join(broken)}\n{done.stdout[-3000:]}")
    return json.loads(re.findall(r"^facts (.*)$", done.stdout, re.M)[-1])


def main() -> None:
    """Run all checks, and write the table between its two markers."""
    found = {version: facts_of(*venv) for version, venv in VENVS.items()}
    write({version: each for version, each in found.items() if each is not None})


def write(facts: dict[str, Any]) -> None:
    """Write what was found by each version of LeRobot's."""
    rows = ["| class | asked | largest difference | why not |", "|---|---|---|---|"]
    for kind in sorted({kind for each in facts.values() for kind in each["known"]}):
        differences = [
            f"{each['differences'][kind]:.0e} ({version})"
            for version, each in facts.items()
            if kind in each["differences"]
        ]
        asked = BATCHED.get(kind, "one batch") if differences else ""
        why = "" if differences else WHY_NOT.get(kind, "never tried with random weights")
        rows.append(f"| `{kind}` | {asked} | {', '.join(differences)} | {why} |")
    text = DOCUMENT.read_text()
    table = "\n".join(["<!-- classes -->", *rows, "<!-- /classes -->"])
    text = re.sub(r"<!-- classes -->.*?<!-- /classes -->", table, text, flags=re.S)
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
