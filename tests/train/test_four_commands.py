"""The four commands that docs/training.md begins with, as they stand there."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.processes import DEADLINE_S

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def shown() -> list[list[str]]:
    """The commands of the page's first block."""
    text = (ROOT / "docs" / "training.md").read_text()
    block = re.search(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    joined = block[1].replace("\\\n", " ")
    lines = [line.partition("#")[0] for line in joined.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("hocket ")]


def start(folder: Path, words: list[str]) -> subprocess.Popen[str]:
    paths = [str(EXAMPLES), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-m", "hocket", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, words: list[str]) -> str:
    with start(folder, words) as process:
        try:
            out, err = process.communicate(timeout=10 * DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 0, out + err
    return out


def rates(folder: Path, run_name: str) -> list[float]:
    lines = (folder / "runs" / run_name / "metrics.jsonl").read_text().splitlines()
    records = map(json.loads, lines)
    return [record["eval/success"] for record in records if record["kind"] == "eval"]


def test_the_page_begins_with_collecting_cloning_improving_and_evaluating() -> None:
    assert [words[0] for words in shown()] == ["collect", "train", "train", "eval"]


@pytest.mark.slow
@pytest.mark.timeout(40 * DEADLINE_S)
def test_a_prompt_policy_is_collected_for_cloned_improved_and_evaluated(tmp_path: Path) -> None:
    collect, clone, improve, evaluate = shown()
    run(tmp_path, collect)
    run(tmp_path, clone)
    assert rates(tmp_path, "cloned")[0] <= 0.5
    assert max(rates(tmp_path, "cloned")) > 0.5, "better than anyone who does not read"
    # Killed in the middle, the improving run goes on.
    process = start(tmp_path, [*improve, "--checkpoint-every", "300"])
    try:
        until = time.monotonic() + 5 * DEADLINE_S
        saved = tmp_path / "runs" / "improved" / "checkpoints"
        while not list(saved.glob("[0-9]*")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    run(tmp_path, ["train", "--resume", "runs/improved"])
    report = json.loads(run(tmp_path, [*evaluate, "--json"]))
    # That it improves within these few steps is a matter of luck, which the page says.
    assert len(rates(tmp_path, "improved")) == 3
    assert report["overall"]["n"] == 50
    assert report["overall"]["rate"] > 0.5, "better than anyone who does not read"
