"""The timeline for Perfetto."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from hocket.records.chunks import load_chunks
from hocket.runs.demonstrations.chosen import Choice
from support.exported_runs import episodes_of, export


def trace(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return events


def test_every_episode_batch_and_step_is_in_it(image_run: Path, tmp_path: Path) -> None:
    export(image_run, "perfetto", tmp_path / "trace.json")
    events, chunks = trace(tmp_path / "trace.json"), load_chunks(image_run)
    told = {e["args"]["trial"]: e["args"] for e in events if e.get("cat") == "episode"}
    for episode in episodes_of(image_run):
        assert told[episode.trial.id]["outcome"] == episode.outcome.value
        assert told[episode.trial.id]["steps"] == episode.steps
    batches = [e["args"]["batch"] for e in events if e.get("cat") == "policy"]
    assert sorted(batches) == sorted(set(chunks["batch"].to_pylist()))
    sizes = [e["args"]["rows"] for e in events if e["ph"] == "C"]
    assert len(sizes) == len(batches)
    stepped = sum(e["args"]["steps"] for e in events if e["name"] == "stepping")
    assert stepped == sum(episode.steps for episode in episodes_of(image_run))


def test_slices_of_one_thread_lie_inside_each_other_or_apart(
    image_run: Path, tmp_path: Path
) -> None:
    export(image_run, "perfetto", tmp_path / "trace.json")
    threads = defaultdict(list)
    for event in trace(tmp_path / "trace.json"):
        if event["ph"] == "X":
            span = (event["ts"], -event["dur"])
            threads[event["pid"], event["tid"]].append(span)
    lanes = set(load_chunks(image_run)["lane"].to_pylist())
    assert len(threads) == len(lanes) + 1  # and the policy
    for spans in threads.values():
        open_until: list[float] = []
        for begin, negative in sorted(spans):
            while open_until and open_until[-1] <= begin + 0.002:
                open_until.pop()
            end = begin - negative
            assert not open_until or end <= open_until[-1] + 0.002
            open_until.append(end)


def test_a_name_that_ends_in_gz_is_compressed(image_run: Path, tmp_path: Path) -> None:
    choice = Choice(outcomes=("success",))
    export(image_run, "perfetto", tmp_path / "trace.json.gz", choice=choice)
    outcomes = {
        e["args"]["outcome"] for e in trace(tmp_path / "trace.json.gz") if e.get("cat") == "episode"
    }
    assert outcomes == {"success"}
