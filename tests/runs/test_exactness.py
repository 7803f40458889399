"""What a run may claim of "same trial, same result", and the evidence that it gathers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.core.data import RowChecks
from hocket.core.events import EpisodesEnded, Event
from hocket.engine.inferring.row_checks import SHARE, other_batch
from hocket.errors import UsageError
from hocket.records.ledger.view import LedgerView
from hocket.results.comparing.compare import compare_runs
from hocket.results.comparing.side import Side
from hocket.results.run_folder import rebuild_report
from hocket.runs.evaluation import resume
from support.batch_policies import Counting, Positional


def run(policy: Any, lanes: int, **settings: Any) -> hocket.Report:
    common: dict[str, Any] = {"env": "toy:count", "episodes": 24, **settings}
    return hocket.evaluate(policy=policy, lanes=lanes, **common)


def results(report: hocket.Report) -> list[tuple[str, int, float]]:
    return [(e.outcome.value, e.steps, e.total_reward) for e in report.episodes]


def test_exact_infers_every_row_alone_so_that_lanes_do_not_matter_to_the_bit() -> None:
    few, many = Positional(), Positional()
    alone, among = run(few, 1, exact=True), run(many, 7, exact=True)
    assert results(alone) == results(among)
    assert set(few.sizes) == set(many.sizes) == {1}
    assert alone.exactness == among.exactness == "bitwise"


def test_exact_leaves_batches_to_a_policy_that_declares_itself_invariant() -> None:
    policy = Positional(shift=0, batch_invariant=True)
    report = run(policy, 7, exact=True)
    assert max(policy.sizes) > 1
    assert report.exactness == "bitwise"
    assert report.claim.checks == RowChecks()


def test_a_torch_network_gives_the_same_bits_with_exact_whatever_the_lanes() -> None:
    torch = pytest.importorskip("torch")
    from hocket.adapters.policies.torch import TorchPolicy

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            # Widths like these give a row other bits at other indices of a batch of 64.
            self.net = torch.nn.Sequential(
                torch.nn.Linear(5, 33), torch.nn.Tanh(), torch.nn.Linear(33, 7), torch.nn.Tanh()
            )

        def forward(self, observation: Any) -> Any:
            found = self.net(observation["observation/state"].float())
            return found.reshape(len(found), 7, 1)

    def of(lanes: int) -> hocket.Report:
        policy = TorchPolicy(Net(), chunk_length=7, action_size=1, max_batch=64, threads=1)
        return run(policy, lanes, env_config={"action_size": 1}, exact=True)

    assert results(of(1)) == results(of(7))


def test_exact_needs_one_copy_of_the_policy() -> None:
    class Copies(Positional):
        def replicas(self, devices: Any) -> list[Positional]:
            return [Positional() for _ in devices]

    with pytest.raises(UsageError, match="one device"):
        run(Copies(), 2, exact=True, policy_devices=("a", "b"))


@pytest.mark.parametrize(("lanes", "least"), [(1, 4), (7, 3)])
def test_rows_that_agree_wherever_they_stand_are_counted(lanes: int, least: int) -> None:
    """Warm-up compares the sizes 1, 2, 4 and 7, or 1 and 2; one lane makes the same batches, and so
    the same checks, every time."""
    report = run(Positional(shift=0), lanes, episodes=60)
    assert report.exactness == "inputs"
    assert report.claim.checks.made >= least
    assert report.claim.checks.differed == 0
    made = report.claim.checks.made
    assert f"agreed in {made} of {made} checks" in report.summary


@pytest.mark.parametrize("lanes", [1, 7])
def test_one_row_that_differs_elsewhere_lowers_the_level(lanes: int) -> None:
    report = run(Positional(), lanes)
    assert report.exactness == "inputs"
    assert report.claim.checks.differed > 0
    said = f"differed in {report.claim.checks.differed} of {report.claim.checks.made} checks"
    assert said in report.summary
    assert report.to_json()["checks"] == {
        "made": report.claim.checks.made,
        "differed": report.claim.checks.differed,
    }


def test_checks_do_not_change_what_a_run_gives() -> None:
    """A row's own batch is never touched: one lane infers each row alone, checked or not."""
    checked, unchecked = Positional(), Positional(batch_invariant=True)
    assert results(run(checked, 1)) == results(run(unchecked, 1))
    assert max(checked.sizes) == 2
    assert max(unchecked.sizes) == 1


def test_policies_that_keep_state_or_draw_their_own_noise_are_not_asked_twice() -> None:
    stateful = run(Counting(), 7, env="support.row_toys:RowToys", episodes=12)
    assert (stateful.exactness, stateful.claim.checks) == ("inputs", RowChecks())
    assert "checks" not in stateful.summary
    noisy = run(Positional(keyed_noise=False), 7)
    assert (noisy.exactness, noisy.claim.checks) == ("environment", RowChecks())


class Interrupt:
    """A reader that stops the run, as Ctrl-C does, once so many episodes have ended."""

    def __init__(self, after: int) -> None:
        self._left = after

    def on(self, event: Event) -> None:
        if isinstance(event, EpisodesEnded):
            self._left -= len(event.episodes)
            if self._left <= 0:
                raise KeyboardInterrupt

    def close(self) -> None: ...


@pytest.mark.slow
def test_a_difference_stays_for_good_and_counts_add_up_over_legs(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = run(Positional(), 3, out=folder, readers=[Interrupt(8)])
    assert not first.complete
    assert first.claim.checks.differed > 0
    whole = resume(folder, policy=Positional(shift=0))
    assert whole.complete
    assert whole.claim.checks.made > first.claim.checks.made
    assert whole.claim.checks.differed == first.claim.checks.differed
    with LedgerView.open(folder) as ledger:
        kept = ledger.meta()["exactness"]
    assert kept == {
        "level": "inputs",
        "made": whole.claim.checks.made,
        "differed": whole.claim.checks.differed,
    }
    said = f"differed in {whole.claim.checks.differed} of {whole.claim.checks.made} checks"
    assert rebuild_report(folder).claim.checks == whole.claim.checks
    assert json.loads((folder / "report.json").read_text())["checks"] == {
        "made": whole.claim.checks.made,
        "differed": whole.claim.checks.differed,
    }
    assert said in (folder / "report.html").read_text()
    side = Side.open(folder)
    assert said in " ".join(compare_runs(side, side).notes)
    assert compare_runs(side, side).to_json()["a"]["checks"]["made"] == whole.claim.checks.made


@pytest.mark.slow
def test_a_run_is_as_exact_as_its_least_exact_leg(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(Positional(), 2, out=folder, readers=[Interrupt(4)])
    assert resume(folder, policy=Positional(batch_invariant=True)).exactness == "inputs"
    assert Side.open(folder).exactness == "inputs"


def test_a_folder_whose_ledger_claims_nothing_has_the_claim_of_its_run_file(tmp_path: Path) -> None:
    from support.recorded_runs import SUCCESS, plan, record_run

    folder = record_run(tmp_path / "run", plan(["reach"], 2), lambda _: SUCCESS)
    assert rebuild_report(folder).exactness == Side.open(folder).exactness == "bitwise"


def test_a_row_is_checked_at_another_index() -> None:
    sizes = (1, 2, 4, 7)
    seen = set()
    for turn in range(500):
        for rows in range(1, 8):
            order = other_batch(rows, turn * SHARE, sizes)
            seen.add((rows, len(order)))
            assert len(order) in sizes
            assert len(order) <= max(2, 2 * rows)
            assert all(0 <= row < rows for row in order)
            if rows > 1:
                assert all(row != index for index, row in enumerate(order))
    assert seen >= {(1, 2), (7, 1), (7, 4), (7, 7), (4, 7), (2, 4)}


def test_few_batches_are_chosen_and_none_where_no_other_can_be_made() -> None:
    chosen = [seed for seed in range(10_000) if other_batch(4, seed, (1, 2, 4))]
    assert len(chosen) == -(-10_000 // SHARE)
    assert other_batch(1, 0, (1,)) == ()
