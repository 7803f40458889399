"""The lease book, without a clock: every rule, and random histories."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hocket.core.data import Trial
from hocket.machines.leasing.entries import Lease, LeaseId
from hocket.machines.leasing.leases import LeaseBook


def plan(tasks: int, seeds: int) -> list[Trial]:
    return [Trial("s", f"t{task}", seed) for seed in range(seeds) for task in range(tasks)]


def book(count: int, *, tasks: int = 1, **config: Any) -> LeaseBook:
    made = LeaseBook(**config)
    made.add(plan(tasks, count))
    return made


def names(leases: list[Lease]) -> list[tuple[int, int, str]]:
    return [(*lease.id, lease.site) for lease in leases]


def test_every_lane_gets_an_episode_before_any_waits_at_a_site() -> None:
    leases = book(5)
    leases.join("a", 2, 0.0)
    leases.join("b", 2, 0.0)
    sites = [lease.site for lease in leases.grant(0.0)]
    assert sites.count("a") == sites.count("b") == 2 or sorted(sites[:4]) == ["a", "a", "b", "b"]


def test_more_wait_at_a_site_while_there_is_much_to_do_and_none_at_the_end() -> None:
    leases = book(100)
    leases.join("a", 8, 0.0)
    assert len(leases.grant(0.0)) == 10
    few = book(16)
    few.join("a", 8, 0.0)
    assert len(few.grant(0.0)) == 8


def test_nothing_waits_at_a_slow_site_when_the_end_is_near() -> None:
    leases = book(400)
    pace = {"slow": 20.0, "a": 10.0, "b": 10.0, "c": 10.0}
    for site in pace:
        leases.join(site, 4, 0.0)
    waits = {site: set() for site in pace}
    while leases.waiting > 20:
        leases.grant(0.0)
        for site, seconds in pace.items():
            held = leases.held(site)
            waits[site].add((leases.waiting > 60, len(held) - 4))
            for name in sorted(held)[:2]:
                leases.seal(name, seconds)
    assert (True, 1) in waits["slow"], "There is much to do."
    # In the end all but the slow one may have something that waits.
    assert (False, 1) in waits["a"]
    assert (False, 1) not in waits["slow"]


def test_a_site_keeps_to_its_tasks_while_there_is_much_to_do() -> None:
    leases = book(100, tasks=4)
    leases.join("a", 1, 0.0)
    leases.join("b", 1, 0.0)
    for lease in leases.grant(0.0):
        task = lease.id.trial % 4
        leases.seal(lease.id, 1.0)
        (again,) = leases.grant(0.0, only=[lease.site])
        assert again.id.trial % 4 == task


def test_towards_the_end_the_longest_go_first() -> None:
    leases = book(3, tasks=3)
    seconds = [5.0, 50.0, 1.0]
    leases.join("a", 9, 0.0)
    for lease in leases.grant(0.0):
        if lease.id.trial < 3:
            leases.seal(lease.id, seconds[lease.id.trial])
        else:
            leases.give_back(lease.id, spends=False)
    order = []
    leases.join("a", 3, 0.0)
    while not leases.is_done:
        lease, *others = leases.grant(0.0)
        for other in others:
            leases.give_back(other.id, spends=False)
        order.append(lease.id.trial % 3)
        leases.seal(lease.id, seconds[lease.id.trial % 3])
    assert order == [1, 1, 0, 0, 2, 2]


def test_a_lease_ends_when_its_site_is_silent_and_spends_no_retry() -> None:
    leases = book(1, retries=0, lease_s=10.0)
    leases.join("a", 1, 0.0)
    (lease,) = leases.grant(0.0)
    leases.hear("a", 5.0)
    assert leases.expire(15.0) == {}
    assert leases.expire(15.1) == {"a": [lease]}
    assert leases.seal(lease.id, 1.0) == "late"
    assert leases.late == 1
    leases.join("b", 1, 16.0)
    (again,) = leases.grant(16.0)
    assert again.id == LeaseId(0, 1)
    assert leases.seal(again.id, 1.0) == "counts"
    assert leases.is_done


def test_what_a_site_has_not_begun_is_asked_back_for_an_idle_one() -> None:
    leases = book(6)
    leases.join("slow", 2, 0.0)
    granted = leases.grant(0.0)
    assert len(granted) == 3
    leases.join("quick", 3, 0.0)
    for lease in leases.grant(0.0):
        assert leases.seal(lease.id, 1.0) == "counts"
    leases.leave("quick")
    leases.began(granted[0].id)
    leases.began(granted[1].id)
    assert leases.ask_back() == []
    leases.join("idle", 4, 0.0)
    assert [lease.id for lease in leases.ask_back()] == [granted[2].id]
    assert leases.ask_back() == []
    given = leases.give_back(granted[2].id, spends=False)
    assert not given
    assert [lease.site for lease in leases.grant(1.0)] == ["idle"]


def test_an_attempt_that_failed_too_often_ends_its_trial() -> None:
    leases = book(2, retries=1)
    leases.join("a", 1, 0.0)
    (lease,) = leases.grant(0.0)
    leases.seal(lease.id, 1.0)
    for is_final in (False, True):
        (lease,) = leases.grant(0.0)
        given = leases.give_back(lease.id, spends=True)
        assert given is is_final
    assert leases.is_done
    assert leases.give_back(lease.id, spends=True) is False


def test_a_driver_that_goes_on_honours_the_leases_of_the_last_one() -> None:
    leases = LeaseBook(lease_s=10.0)
    trials = plan(1, 3)
    leases.add(trials, {trials[0].id: 3, trials[1].id: 1}, {trials[1].id: 0})
    leases.stand(LeaseId(0, 2), "earlier", 0.0)
    leases.join("a", 4, 0.0)
    assert names(leases.grant(0.0)) == [(2, 0, "a")]
    leases.move(LeaseId(0, 2), "a")
    assert leases.held("a") == {LeaseId(0, 2), LeaseId(2, 0)}
    assert leases.seal(LeaseId(1, 0), 1.0) == "known"
    assert leases.seal(LeaseId(0, 2), 1.0) == "counts"


@given(st.integers(0, 2**32))
def test_whatever_happens_each_trial_ends_once(seed: int) -> None:
    """Sites join, stop, die and come back; episodes come late, twice, or not at all."""
    draw = random.Random(seed)
    leases = book(draw.randint(1, 12), tasks=draw.randint(1, 3), lease_s=5.0, retries=1)
    now, granted, counted = 0.0, {}, {}
    failures: dict[int, int] = {}
    sites = [f"s{i}" for i in range(draw.randint(1, 4))]

    def count(name: LeaseId) -> None:
        assert name.trial not in counted
        counted[name.trial] = name.attempt

    for _ in range(200):
        now += draw.random()
        site = draw.choice(sites)
        held = sorted(leases.held(site))
        event = draw.randrange(8)
        if event == 0:
            leases.join(site, draw.randint(1, 3), now)
        elif event == 1:
            leases.leave(site)
        elif event == 2 and held:
            leases.began(draw.choice(held))
        elif event == 3 and granted:
            name = draw.choice(sorted(granted))
            stood = leases.lease(name) is not None
            verdict = leases.seal(name, draw.random())
            assert stood or verdict in ("late", "known")
            if verdict == "counts":
                count(name)
        elif event == 4 and held:
            name, spends = draw.choice(held), draw.random() < 0.5
            is_final = leases.give_back(name, spends=spends)
            failures[name.trial] = failures.get(name.trial, 0) + spends
            if is_final:
                assert failures[name.trial] > 1
                count(name)
        elif event == 5:
            leases.expire(now)
        else:
            leases.hear(site, now)
            asked = leases.ask_back()
            assert all(not lease.has_begun for lease in asked)
        for lease in leases.grant(now):
            assert lease.id not in granted, "A number was used twice."
            assert lease.id.trial not in counted
            granted[lease.id] = lease
    leases.join("last", 3, now)
    while not leases.is_done:
        now += 6.0
        leases.hear("last", now)
        leases.expire(now)
        for lease in leases.grant(now):
            assert lease.id not in granted
            granted[lease.id] = lease
            if leases.seal(lease.id, 1.0) == "counts":
                count(lease.id)
        for name in sorted(leases.held("last")):
            if leases.seal(name, 1.0) == "counts":
                count(name)
    assert sorted(counted) == list(range(len(counted)))
    assert leases.running("last") == leases.running("nobody") == 0
