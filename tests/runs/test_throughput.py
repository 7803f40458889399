"""How fast a run went is one figure, wherever it is told."""

from __future__ import annotations

import json
from pathlib import Path

import hocket
from hocket.results.report import Report
from hocket.results.run_folder import rebuild_report


def test_page_terminal_and_report_tell_one_throughput_of_a_short_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    report = hocket.evaluate(env="toy:count", policy="scripted", episodes=3, lanes=1, out=run)
    speed = report.throughput
    assert speed.env_steps_per_s is not None
    assert speed.env_steps == sum(episode.steps for episode in report.episodes)
    told = f"{speed.env_steps_per_s:,.0f}"
    page = (run / "report.html").read_text()
    assert f'["throughput","{told}"," env steps/s"]' in page
    assert f"{told} env steps/s" in report.summary
    assert Report.load(run).throughput == speed
    assert rebuild_report(run).throughput == speed
    (run / "report.json").unlink()
    assert rebuild_report(run).throughput.env_steps_per_s == speed.env_steps_per_s


def test_resume_of_a_finished_run_writes_its_report_only_where_another_is_kept(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    report = hocket.evaluate(
        env="toy:count", policy="scripted", episodes=3, lanes=1, out=run, video="none"
    )
    assert hocket.resume(run).to_json() == report.to_json()
    files = [run / "report.json", run / "report.html"]
    kept = [(file.stat().st_mtime_ns, file.stat().st_ino) for file in files]
    assert hocket.resume(run).to_json() == report.to_json()
    assert [(file.stat().st_mtime_ns, file.stat().st_ino) for file in files] == kept
    document = json.loads(files[0].read_text())
    document["overall"]["rate"] = 0.123
    files[0].write_text(json.dumps(document))
    assert hocket.resume(run).overall == report.overall, "what the ledger says counts"
    assert Report.load(run).to_json() == report.to_json()
    files[1].unlink()
    hocket.resume(run)
    assert files[1].exists()
