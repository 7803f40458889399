"""A run that goes on is held to the program that its folder holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.core.events import AttemptsBegan, EpisodesSealed, Event
from hocket.errors import HocketError, UsageError
from hocket.records.ledger.view import LedgerView
from hocket.records.provenance import hardware
from hocket.results.comparing.compare import compare_runs
from hocket.results.comparing.side import Side
from hocket.results.run_folder import rebuild_report
from hocket.runs import readers
from hocket.runs.checks.card import write_card
from hocket.runs.config import EvalConfig
from hocket.runs.evaluation import resume
from hocket.runs.run import Run
from support.batch_policies import Positional

ENV = """
    from __future__ import annotations
    import numpy as np
    from gymnasium import Env, spaces
    from {rules} import is_done

    class Dot(Env):
        observation_space = spaces.Box(-9, 9, (2,), np.float64)
        action_space = spaces.Box(-1, 1, (2,), np.float64)
        max_steps = 4
        facts = {{"model_sha256": "{model}", "gl_renderer": "{renderer}", "gl_version": "{driver}"}}

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.place = self.np_random.uniform(-1, 1, 2)
            return self.place, {{}}

        def step(self, action):
            self.place = self.place + 0.1 * action
            return self.place, 0.0, False, False, {{"success": is_done(self.place)}}

    def dot():
        return Dot()
"""
POLICY = """
    from pathlib import Path
    import numpy as np, hocket

    class Still:
        spec = hocket.PolicySpec(chunk_length=4, action_size=2)

        def __init__(self, weights=""):
            self.gain = float(Path(weights).read_text()) if weights else 0.0

        def infer(self, batch):
            return np.full((batch.size, 4, 2), self.gain)

        def close(self): ...
"""


class Stop:
    """A reader that stops the run as Ctrl-C does, or does something, after a number of episodes."""

    hears = (EpisodesSealed,)

    def __init__(self, after: int, do: Callable[[], object] | None = None) -> None:
        self.left = after
        self.do = do

    def on(self, event: Event) -> None:
        if isinstance(event, EpisodesSealed):
            self.left -= len(event.episodes)
            if self.left <= 0 and self.do is None:
                raise KeyboardInterrupt
            if self.left <= 0 and self.do is not None:
                self.do()

    def close(self) -> None: ...


class Desk:
    """A folder with an env, a module that it imports, a policy and its weights."""

    def __init__(self, root: Path) -> None:
        self.root, self.run = root, root / "run"
        self.name = f"dots_{root.name.replace('-', '_')}"
        self.write_env()
        self.write_rules("0.5")
        (root / f"{self.name}_policy.py").write_text(textwrap.dedent(POLICY))
        (root / "weights").mkdir()
        (root / "weights" / "gain.txt").write_text("0.0")

    def write_env(self, model: str = "a1", renderer: str = "llvm", driver: str = "1") -> None:
        text = textwrap.dedent(ENV)
        rules = f"{self.name}_rules"
        text = text.format(model=model, renderer=renderer, driver=driver, rules=rules)
        (self.root / f"{self.name}.py").write_text(text)

    def write_rules(self, bound: str) -> None:
        text = (
            f"import numpy as np\n\ndef is_done(place):\n    return bool(abs(place[0]) < {bound})\n"
        )
        (self.root / f"{self.name}_rules.py").write_text(text)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "env": f"{self.name}.py:Dot",
            "policy": f"{self.name}_policy:Still",
            "policy_config": {"weights": "weights/gain.txt"},
            "episodes": 12,
            "video": "none",
            "out": self.run,
        }

    def begin(self, **settings: Any) -> hocket.Report:
        return hocket.evaluate(**{**self.settings, "readers": [Stop(4)], **settings})


def keep_code(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let code be what it was: a library that the env draws on was replaced."""
    with LedgerView.open(desk.run) as ledger:
        known = ledger.legs()[0].provenance
    monkeypatch.setattr(readers, "code_digests", lambda _: {})
    monkeypatch.setattr(readers, "provenance", lambda _: {**known})


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Desk(tmp_path)


def edit_rules(desk: Desk) -> str:
    desk.write_rules("9.0")
    return f"code of {desk.name}_rules"


def edit_env(desk: Desk) -> str:
    with open(f"{desk.name}.py", "a") as file:
        file.write("\nDot.max_steps = 3\n")
    return f"code of {desk.name}.py"


def edit_policy(desk: Desk) -> str:
    with open(f"{desk.name}_policy.py", "a") as file:
        file.write("\nStill.gain = 1.0\n")
    return f"code of {desk.name}_policy"


def edit_weights(desk: Desk) -> str:
    before = os.stat("weights/gain.txt")
    Path("weights/gain.txt").write_text("1.0")
    # As a copy that keeps times leaves it: neither size nor time tells.
    os.utime("weights/gain.txt", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    return "file gain.txt"


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("edit", [edit_rules, edit_env, edit_policy, edit_weights])
def test_another_program_does_not_go_on_with_a_run_unless_it_is_told_to(
    desk: Desk, edit: Callable[[Desk], str], lanes: int
) -> None:
    first = desk.begin(lanes=lanes)
    assert not first.complete
    changed = edit(desk)
    with pytest.raises(UsageError, match="--allow-changes") as refused:
        resume(desk.run)
    assert changed in str(refused.value)
    assert "before" in str(refused.value)
    assert len(rebuild_report(desk.run).episodes) == len(first.episodes)
    report = resume(desk.run, allow_changes=True)
    assert report.complete
    for told in (report, rebuild_report(desk.run)):
        assert told.exactness == "environment"
        assert changed in told.claim.sentence
        assert "to the bit" not in told.summary
        first_leg, second = told.provenance["legs"]
        assert first_leg["episodes"] == len(first.episodes)
        assert first_leg["episodes"] + second["episodes"] == 12
        assert changed in " ".join(second["differs"])


def test_a_card_and_a_comparison_say_that_a_run_is_of_several_programs(desk: Desk) -> None:
    desk.begin()
    changed = edit_rules(desk)
    resume(desk.run, allow_changes=True)
    write_card(desk.run, desk.root / "card")
    card = json.loads((desk.root / "card" / "card.json").read_text())
    assert changed in " ".join(card["changed"])
    assert [leg["legs"] for leg in card["provenance"]["legs"]] == [1, 1]
    assert changed in (desk.root / "card" / "card.md").read_text().replace("\\", "")
    for place in (desk.run, desk.root / "card" / "card.json"):
        side = Side.open(place)
        assert changed in " ".join(compare_runs(side, side).notes)


def test_a_run_goes_on_as_any_of_the_programs_that_it_is_of(desk: Desk) -> None:
    desk.begin()
    edit_rules(desk)
    with pytest.raises(HocketError):
        resume(desk.run)
    with Run.open(desk.run, allow_changes=True) as run:
        run.finish(readers=[Stop(3)])
    assert resume(desk.run).complete
    assert len(rebuild_report(desk.run).provenance["legs"]) == 2


def test_the_same_program_goes_on_and_keeps_its_exactness(desk: Desk) -> None:
    before = desk.begin(exact=True)
    after = resume(desk.run)
    assert after.exactness == before.exactness == "bitwise"
    assert "legs" not in after.provenance
    assert "changed" not in after.to_json()


def test_a_run_of_which_nothing_counts_yet_may_be_gone_on_with_by_anything(desk: Desk) -> None:
    class Never:
        hears = (AttemptsBegan,)

        def on(self, event: Event) -> None:
            assert isinstance(event, AttemptsBegan)  # Elsewhere it would end these tests.
            raise KeyboardInterrupt

        def close(self) -> None: ...

    config = EvalConfig.from_plain({k: v for k, v in desk.settings.items() if k != "out"})
    with Run.new(config, desk.run) as run:
        run.is_new = False
        run.finish(readers=[Never()])
    edit_rules(desk)
    assert resume(desk.run).exactness != "environment"


# Of another length: Python takes a file of the same second and size for the one that it compiled.
@pytest.mark.parametrize("told", [{"model": "b20"}, {"renderer": "NVIDIA"}])
def test_what_only_the_env_knows_stops_a_run_before_an_episode_of_it_counts(
    desk: Desk, told: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = desk.begin(lanes=2)
    desk.write_env(**told)
    keep_code(desk, monkeypatch)
    with pytest.raises(UsageError, match=f"{next(iter(told.values()))} now"):
        resume(desk.run)
    assert len(rebuild_report(desk.run).episodes) == len(first.episodes)
    with pytest.raises(UsageError):  # what the refused leg was told is not what the folder says
        resume(desk.run)
    report = resume(desk.run, allow_changes=True)
    assert report.exactness == "environment"


def test_another_driver_is_no_other_program(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.begin(lanes=2)
    desk.write_env(driver="2")
    keep_code(desk, monkeypatch)
    assert resume(desk.run).complete


def test_an_edit_while_the_run_goes_on_is_told_at_its_end(desk: Desk) -> None:
    changed = f"code of {desk.name}_rules"
    report = hocket.evaluate(
        **{**desk.settings, "readers": [Stop(3, lambda: desk.write_rules("9.0"))]}
    )
    assert report.exactness == "environment"
    assert changed in report.summary
    assert changed in rebuild_report(desk.run).summary


def test_other_hardware_is_noted_and_nothing_is_claimed_to_the_bit(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.begin(exact=True)
    there = {**hardware(), "openblas": "Prescott"}
    monkeypatch.setattr(readers, "hardware", lambda: there)
    report = resume(desk.run)
    assert report.exactness == "inputs"
    assert "Prescott now" in " ".join(report.provenance["legs"][1]["differs"])


def test_a_policy_object_is_held_to_its_class(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> Any:
        class Other:
            spec = hocket.PolicySpec(chunk_length=4, action_size=2)

            def infer(self, batch: Any) -> Any:
                return np.zeros((batch.size, 4, 2))

            def close(self) -> None: ...

        return Other()

    report = desk.begin(policy=made(), policy_config={}, lanes=1)
    code = report.provenance["code"]
    assert any(name.endswith("test_legs") for name in code)
    with pytest.raises(UsageError, match="policy's class"):
        resume(desk.run, policy=Positional())


def test_the_kernels_of_openblas_are_named() -> None:
    if not list(Path(np.__file__).parent.parent.glob("numpy.libs/*openblas*")):
        pytest.skip("numpy has another BLAS here")
    assert hardware()["openblas"]
    words = "from hocket.records.provenance import hardware; print(hardware()['openblas'])"
    told = {
        core: subprocess.run(
            [sys.executable, "-c", words],
            env={**os.environ, "OPENBLAS_CORETYPE": core},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for core in ("Haswell", "Nehalem")
    }
    assert told == {"Haswell": "Haswell", "Nehalem": "Nehalem"}
