import json
from pathlib import Path

import pytest

from hocket import cli
from hocket.errors import UsageError
from hocket.records import formats


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    assert cli.main(["plan", *arguments]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_the_table_has_a_row_for_each_number_of_lanes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = plan(capsys, "--lanes", "1:8", "--cores", "2", "--execute-s", "0.2", "--latency", "100")
    assert [line[0] for line in lines[1:5]] == ["1", "2", "4", "8"]
    # One lane: 0.2 s to execute and 0.1 s to infer make 3.3 chunks, or 53 steps, a second.
    assert lines[1][1:4] == ["1", "3.3", "53"]
    assert lines[4][-1] == "cores"
    assert " ".join(lines[5]).startswith("Beyond 4 lanes nothing is gained: the cores limit")


def test_a_delay_gains_what_the_policy_took_of_a_cycle(capsys: pytest.CaptureFixture[str]) -> None:
    from hocket.cli.plan import run

    given = ("--lanes", "8", "--cores", "32", "--execute-s", "0.08", "--latency", "80")
    lines = plan(capsys, *given, "--actions", "8", "--delay", "8")
    # A cycle of 80 ms for 8 lanes and 8 steps each, and not of 80 + 80.
    assert lines[1][1:4] == ["8", "100.0", "800"]
    said = " ".join(word for line in lines for word in line)
    assert "up to 2.00 times what they give when the world waits" in said
    lines = plan(capsys, *given, "--actions", "8", "--delay", "4")
    said = " ".join(word for line in lines for word in line)
    gain = float(said.split("up to ")[1].split(" times")[0])
    assert 1.25 < gain < 1.34  # a cycle of max(80, 40) + 40 ms, and not of 80 + 80
    with pytest.raises(UsageError, match="between 0 and --actions"):
        run([*given, "--actions", "8", "--delay", "9"])


def test_numbers_of_a_run_take_the_place_of_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    throughput = {
        "env_steps": 8000,
        "chunks": 1000,
        "batches": 250,
        "policy_busy": 0.5,
        "cores_busy": 0.1,  # envs that sleep take time, and no core
        "worked_s": 320.0,
        "wall_s": 100.0,
        "lanes": 8,
        "cores": 4,
    }
    report = {
        "format": formats.REPORT.number,
        "hocket": "0",
        "config": {},
        "exactness": "inputs",
        "planned": 0,
        "tasks": [],
        "episodes": [],
        "throughput": throughput,
    }
    (tmp_path / "report.json").write_text(json.dumps(report))
    measured = plan(capsys, "--from", str(tmp_path), "--lanes", "8")
    given = plan(
        capsys,
        *("--lanes", "8", "--cores", "4", "--actions", "8"),
        *("--execute-s", "0.32", "--latency", "4=200"),
    )
    assert measured == given


def test_the_advice_says_how_many_cores_are_of_use(capsys: pytest.CaptureFixture[str]) -> None:
    # The policy gives 64 chunks in 0.619 s: 103 a second, which 17 cores execute at 0.16 s each.
    numbers = ("--cores", "8", "--execute-s", "0.16", "--latency", "75+8.5B")
    lines = plan(capsys, "--lanes", "1:128", *numbers)
    advice = " ".join(word for line in lines[9:] for word in line)
    assert advice.endswith("the cores limit; more cores help 128 lanes, up to 17.")


@pytest.mark.parametrize("flag", ["--cores", "--execute-s", "--max-batch", "--concurrency"])
def test_numbers_below_one_are_refused(flag: str) -> None:
    from hocket.cli.plan import run

    with pytest.raises(UsageError, match=f"{flag} is 0; it must be above 0"):
        run(["--latency", "75", "--execute-s", "0.1", flag, "0"])


def test_a_number_that_is_missing_is_named() -> None:
    from hocket.cli.plan import run

    with pytest.raises(UsageError, match="--latency is needed"):
        run(["--execute-s", "1"])
