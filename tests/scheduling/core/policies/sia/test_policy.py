"""Sia: what each size is worth to it, what it leaves alone, and the program's answer by hand."""

from dataclasses import replace

import numpy as np
import pytest

from scheduling.core.policies import make_policy
from scheduling.core.policies.sia.program import columns_of, scaled_goodputs
from scheduling.core.policy_interface import (
    Alloc,
    JobPhase,
    Kind,
    LinearModel,
    Part,
    Scale,
    TypeInfo,
)
from tests.strategies.policy_views import NOW, make_job, make_view

TYPES = {
    "a": TypeInfo(nodes=3, node_devices=4, speed=1.0),
    "b": TypeInfo(nodes=2, node_devices=8, speed=3.0),
}
CAPACITY = {"a": 12, "b": 16}


class Known(LinearModel):
    """Every job has run on so many devices; goodput grows with the root of the size."""

    def __init__(self, seen=None, replicas=None):
        super().__init__(TYPES)
        self.seen = {"a": 1} if seen is None else seen
        self.replicas = replicas or {}

    def goodputs(self, jobs, shapes, *, within_request=False):
        row = [
            (shape.devices / self.replicas.get(shape.type, 1)) ** 0.5
            if shape.type in self.seen
            else np.nan
            for shape in shapes
        ]
        return np.tile(np.array(row), (len(jobs), 1))

    def profiled(self, job):
        return self.seen

    def replica(self, job, device_type):
        return self.replicas.get(device_type, 1)

    def most_devices(self, job, device_type):
        return 64


def adaptive(job_id, **more):
    return make_job(job_id, 1, kind=Kind.ADAPTIVE, scale=Scale(minimum=1, maximum=64), **more)


def view(*jobs, model=None, capacity=None):
    found = make_view(jobs, capacity or CAPACITY, model=model or Known())
    return replace(found, pool=replace(found.pool, types=TYPES))


def held(kind, n):
    return Alloc(parts=(Part(n=n, type=kind, level="node"),))


def planned(snapshot, **args):
    plan, _state = make_policy("sia", args).plan(snapshot, {})
    return {job_id: (alloc.single.type, alloc.devices) for job_id, alloc in plan.allocs.items()}


def test_sizes_are_powers_of_two_inside_a_node_and_then_whole_nodes():
    columns = columns_of(TYPES, CAPACITY)

    assert [(shape.type, shape.nodes, shape.devices) for shape in columns.shapes] == [
        ("a", 1, 1), ("a", 1, 2), ("a", 1, 4), ("a", 2, 8), ("a", 3, 12),
        ("b", 1, 1), ("b", 1, 2), ("b", 1, 4), ("b", 1, 8), ("b", 2, 16),
    ]  # fmt: skip


def test_a_row_counts_in_its_smallest_goodput_and_projects_to_types_never_seen():
    snapshot = view(adaptive(1), model=Known({"a": 2}))
    columns = columns_of(TYPES, CAPACITY)

    rows = scaled_goodputs(
        snapshot, snapshot.jobs, columns, limits=[4], within_request=True, bootstrap=False
    )

    nothing = 1e-4
    assert rows[0] == pytest.approx(
        [1, 2**0.5, 2, nothing, nothing, 3, 3 * 2**0.5, 6, nothing, nothing]
    )


def test_a_job_that_has_not_run_begins_at_its_smallest_size():
    job = make_job(1, 8, kind=Kind.ADAPTIVE, scale=Scale(minimum=4, maximum=16), types=("a",))

    plan, _ = make_policy("sia", {}).plan(view(job, model=Known({"a": 0})), {})

    assert plan.allocs[1].devices == 4


def test_the_smallest_size_of_a_pipeline_counts_in_devices_and_its_growth_in_replicas():
    scale = Scale(minimum=4, maximum=16)
    job = make_job(1, 8, kind=Kind.ADAPTIVE, scale=scale, types=("b",))
    new = Known({}, replicas={"a": 2, "b": 4})
    seen = Known({"b": 4}, replicas={"a": 2, "b": 4})

    # Four devices are one replica there: it grows to two of them, not to four.
    assert planned(view(job, model=new)) == {1: ("b", 4)}
    assert planned(view(job, model=seen)) == {1: ("b", 8)}


def test_a_job_begins_at_the_first_size_that_its_owner_allows_on_each_type():
    odd = make_job(1, 3, kind=Kind.ADAPTIVE, scale=Scale(minimum=3, maximum=16), types=("a",))

    assert planned(view(odd, model=Known({}))) == {1: ("a", 4)}
    assert planned(view(odd, model=Known({"a": 0}))) == {1: ("a", 4)}


def test_a_job_grows_to_twice_its_largest_size_at_most():
    assert planned(view(adaptive(1), model=Known({"a": 2}))) == {1: ("b", 4)}
    assert planned(view(adaptive(1), model=Known({"a": 2})), growth=4) == {1: ("b", 8)}


def test_a_new_job_gets_one_device_and_with_a_profile_a_fast_one():
    new = Known({})

    assert next(iter(planned(view(adaptive(1), model=new)).values()))[1] == 1
    assert planned(view(adaptive(1), model=new), bootstrap=True) == {1: ("b", 1)}


def test_moving_is_damped_by_the_part_of_its_life_that_a_job_has_lost_to_restarts():
    young = adaptive(
        1, phase=JobPhase.RUNNING, alloc=held("b", 2), submitted=NOW - 20.0, application="cifar10"
    )
    restless = replace(young, submitted=NOW - 400.0, facts=replace(young.facts, restarts=10))

    assert planned(view(young, model=Known({"b": 2}))) == {1: ("b", 4)}
    assert planned(view(restless, model=Known({"b": 2}))) == {1: ("b", 2)}


def test_a_job_that_is_busy_with_a_restart_is_left_alone():
    busy = adaptive(1, phase=JobPhase.RUNNING, alloc=held("a", 1), facts={"recovering": True})

    assert planned(view(busy, model=Known({"a": 1}))) == {1: ("a", 1)}


def test_how_much_waiting_costs_decides_between_few_large_jobs_and_many_small_ones():
    crowd = view(*[adaptive(n) for n in range(1, 7)], model=Known({"a": 64}), capacity={"a": 6})

    # Two devices for one job save 0.26, one device for each of two jobs 0.20.
    assert set(planned(crowd).values()) == {("a", 2)}
    assert planned(crowd, waiting_cost=2.0) == dict.fromkeys(range(1, 7), ("a", 1))


def test_a_rigid_job_takes_its_gang_on_the_faster_type_or_waits():
    rigid = make_job(1, 8)

    assert planned(view(rigid)) == {1: ("b", 8)}
    assert planned(view(rigid, make_job(2, 16))) == {2: ("b", 16), 1: ("a", 8)}
    assert planned(view(rigid, capacity={"a": 4, "b": 0})) == {}


def test_a_pipeline_is_given_whole_replicas_of_each_type():
    model = Known({}, replicas={"a": 4, "b": 2})
    grown = Known({"a": 4}, replicas={"a": 4, "b": 2})

    assert next(iter(planned(view(adaptive(1), model=model)).values())) in (("a", 4), ("b", 2))
    assert planned(view(adaptive(1), model=grown)) == {1: ("b", 4)}


def test_with_a_positive_power_sizes_that_cannot_be_stay_out_of_the_program():
    picky = adaptive(1, types=("a",))

    assert planned(view(picky, capacity={"a": 0, "b": 8}), fairness=0.5) == {}
    assert planned(view(picky, model=Known({"a": 2})), fairness=0.5) == {1: ("a", 4)}
