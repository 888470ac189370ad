"""ElasticFlow's promises: never broken, and none refused that could have been kept."""

import csv
import itertools
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.policies import make_policy
from scheduling.core.policies.elasticflow.shares import (
    Contract,
    Horizon,
    ShareSpan,
    any_way,
    minimum_share,
    satisfy,
)
from scheduling.core.policy_interface import Facts, JobPhase, LinearModel, Scale, Step
from tests.strategies.policy_views import applied, make_job, make_view

TABLES = ({1: 1.0, 2: 2.0, 4: 4.0}, {1: 1.0, 2: 1.5, 4: 2.0}, {1: 2.0, 2: 3.0}, {2: 3.0, 4: 4.0})


def contracts(count: int) -> st.SearchStrategy[list[Contract]]:
    one = st.tuples(st.sampled_from(TABLES), st.integers(1, 7), st.integers(1, 3))
    return st.lists(one, min_size=1, max_size=count).map(
        lambda rows: [
            Contract(id=i, rates=rates, steps=float(steps), deadline=float(slots))
            for i, (rates, steps, slots) in enumerate(rows)
        ]
    )


def feasible(jobs: list[Contract], room: int) -> bool:
    """Whether all deadlines can be kept, by trying every size of every job in every slot."""

    @cache
    def search(slot: int, left: tuple[float, ...]) -> bool:
        if all(steps <= 1e-9 for steps in left):
            return True
        if any(s > 1e-9 and job.deadline <= slot for job, s in zip(jobs, left, strict=True)):
            return False
        options = [
            [0, *job.rates] if steps > 1e-9 else [0] for job, steps in zip(jobs, left, strict=True)
        ]
        return any(
            search(
                slot + 1,
                tuple(
                    round(max(0.0, steps - job.rates.get(n, 0.0)), 6)
                    for job, steps, n in zip(jobs, left, sizes, strict=True)
                ),
            )
            for sizes in itertools.product(*options)
            if sum(sizes) <= room
        )

    return search(0, tuple(job.steps for job in jobs))


@settings(max_examples=40, deadline=None)
@given(jobs=contracts(6), room=st.integers(1, 6))
def test_all_ways_are_looked_at(jobs, room):
    horizon = Horizon(now=0.0, slot=1.0, free=room)

    greedy = satisfy(jobs, horizon)
    found = greedy if greedy is not None else any_way(jobs, horizon)

    assert (found is not None) is feasible(jobs, room)
    if found is not None:
        for job in jobs:
            assert job.work(found[job.id], 0.0) >= job.steps - 1e-6
        for time in (0.5, 1.5, 2.5):
            spans = [span for profile in found.values() for span in profile]
            assert sum(span.n for span in spans if span.start <= time < span.end) <= room


def test_a_share_is_filled_from_the_deadline_backwards_with_the_least():
    contract = Contract(id=1, rates={1: 1.0, 2: 2.0}, steps=3.0, deadline=5.0)

    profile = minimum_share(contract, Horizon(now=0.0, slot=1.0, free=4))

    assert profile == ((2.0, 5.0, 1),)


def test_a_deadline_inside_a_slot_counts_only_up_to_itself():
    contract = Contract(id=1, rates={1: 1.0}, steps=2.0, deadline=2.5)

    profile = minimum_share(contract, Horizon(now=0.0, slot=1.0, free=1))

    assert profile == ((0.0, 3.0, 1),)
    assert contract.work(profile, 0.0) == 2.5


def test_restarts_are_paid_for():
    cheap = Contract(id=1, rates={1: 1.0}, steps=3.0, deadline=4.0, restart=1.0)
    late = replace(cheap, steps=3.5)
    held = replace(late, held=1)
    horizon = Horizon(now=0.0, slot=1.0, free=1)

    assert minimum_share(cheap, horizon) is not None
    assert minimum_share(late, horizon) is None
    assert minimum_share(held, horizon) is not None


def test_every_change_of_size_costs_a_restart_and_going_on_does_not():
    contract = Contract(id=1, rates={1: 1.0, 2: 2.0}, steps=9.0, deadline=9.0, restart=1.0)
    profile = (
        ShareSpan(0.0, 2.0, 1),
        ShareSpan(2.0, 4.0, 2),
        ShareSpan(4.0, 5.0, 2),
        ShareSpan(6.0, 8.0, 2),
    )

    assert contract.work(profile, 0.0) == 1.0 + 2.0 + 2.0 + 2.0
    assert replace(contract, held=1).work(profile, 0.0) == 2.0 + 2.0 + 2.0 + 2.0


class Exact(LinearModel):
    """Half of what is added by doubling is lost; a restart costs nothing."""

    def rate(self, job, shape, batch=None):
        return float(shape.devices) ** 0.75

    def restart_seconds(self, job, device_type=None):
        return 0.0


def simulate(view, arrivals, policy, rounds):
    """Run rounds of a minute; when each admitted job with a deadline has ended."""
    ended, rejected, now = {}, set(), view.now
    state: Mapping[str, Any] = {}
    pending = sorted(arrivals, key=lambda job: job.submitted)
    active = []
    for _ in range(rounds):
        active += [job for job in pending if job.submitted <= now]
        pending = [job for job in pending if job.submitted > now]
        view = replace(view, now=now, jobs=tuple(sorted(active, key=lambda job: job.id)))
        plan, state = policy.plan(view, state)
        rejected |= set(plan.reject)
        active = []
        for job in applied(view, plan).jobs:
            rate = 0.0
            if job.phase is JobPhase.RUNNING:
                assert job.alloc is not None
                rate = view.model.rate(job, type("S", (), {"devices": job.alloc.devices}))
            assert job.facts.steps_left is not None
            left = job.facts.steps_left - rate * 60.0
            if left <= 1e-6:
                ended[job.id] = now + job.facts.steps_left / rate
                continue
            active.append(replace(job, facts=Facts(steps_left=left, last_run=now)))
        now += 60.0
    return ended, rejected


@settings(max_examples=25, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(
            st.integers(0, 10),
            st.integers(60, 3000),
            st.sampled_from([None, 90, 300, 900, 2400]),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    ),
    room=st.integers(1, 8),
)
def test_no_promised_deadline_is_broken(jobs, room):
    scale = Scale(minimum=1, maximum=8, step=Step.POWER_OF_TWO)
    view = make_view([], {"a": room}, now=60_000.0, model=Exact())
    arrivals = [
        make_job(
            i,
            1,
            types=("a",),
            submitted=60_000.0 + 60.0 * arrival,
            deadline=None if within is None else 60_000.0 + 60.0 * arrival + within,
            scale=scale if elastic else None,
            facts={"steps_left": float(steps)},
        )
        for i, (arrival, steps, within, elastic) in enumerate(jobs, start=1)
    ]

    ended, rejected = simulate(view, arrivals, make_policy("elasticflow", {}), 80)

    for job in arrivals:
        if job.terms.deadline is not None:
            assert job.id in rejected or ended[job.id] <= job.terms.deadline + 1e-6


def test_without_a_refusal_a_hopeless_job_is_best_effort():
    job = make_job(1, 1, types=("a",), deadline=100_010.0, facts={"steps_left": 900.0})
    view = make_view([job], {"a": 1}, model=Exact())

    strict, _ = make_policy("elasticflow", {}).plan(view, {})
    soft, _ = make_policy("elasticflow", {"reject": False}).plan(view, {})

    assert "deadline" in strict.reject[1].text
    assert set(soft.allocs) == {1}


def test_what_is_left_goes_where_it_does_most():
    class TwoKinds(Exact):
        def rate(self, job, shape, batch=None):
            return shape.devices ** (0.9 if job.id == 2 else 0.2)

    scale = Scale(minimum=1, maximum=4, step=Step.POWER_OF_TWO)
    jobs = [make_job(i, 1, types=("a",), scale=scale) for i in (1, 2)]

    plan, _ = make_policy("elasticflow", {}).plan(make_view(jobs, {"a": 5}, model=TwoKinds()), {})

    assert {job: alloc.devices for job, alloc in plan.allocs.items()} == {1: 1, 2: 4}


def test_promises_on_the_published_jobs_hold_with_the_published_rates(shared_dir):
    folder = shared_dir / "data/elasticflow"
    if not folder.is_dir():
        pytest.skip(f"no traces of ElasticFlow at {folder}")
    rates: dict[tuple[str, str], dict[int, float]] = {}
    for path in sorted((folder / "throughputs/A100").glob("*.csv")):
        for row in csv.DictReader(path.read_text().splitlines()):
            batch = row.pop("global_batch_size")
            rates[path.stem, batch] = {int(n): float(v) for n, v in row.items() if v}
    rows = list(csv.DictReader((folder / "with-deadlines/195job.csv").read_text().splitlines()))
    promised = kept = 0
    live: dict[int, tuple[Contract, tuple]] = {}
    for number, row in enumerate(rows[:120]):
        now = float(row["submission_time"])
        for job, (contract, profile) in list(live.items()):
            if contract.deadline <= now:
                kept += contract.work(profile, profile[0].start) >= contract.steps * (1 - 1e-6)
                del live[job]
        table = {n: r for n, r in rates[row["model_name"], row["batch_size"]].items() if r > 0}
        new = Contract(
            id=number,
            rates=table,
            steps=float(row["num_iteration"]),
            deadline=float(row["deadline"]),
        )
        horizon = Horizon(now=now, slot=60.0, free=128)
        for _, profile in live.values():
            horizon.take(
                tuple(s._replace(start=max(s.start, now)) for s in profile if s.end > now)
            )
        promise = minimum_share(new, horizon)
        if promise:
            promised += 1
            live[number] = (new, promise)

    assert promised > 60
    assert kept == promised - len(live)
