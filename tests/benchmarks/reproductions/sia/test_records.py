"""Sia's artefact, reproduced: average completion times against what was measured of it."""

import csv
import itertools
from statistics import mean

import pytest

from benchmarks.reproductions.driver import simulate
from benchmarks.reproductions.sia.traces import read_sia
from benchmarks.reproductions.sia.world import SiaWorld
from scheduling.core.policies import make_policy
from scheduling.core.simulation.setups import Setup
from scheduling.core.workloads.clusters import read_cluster

SETS = {"philly": (1, 2, 3), "saturn": (1, 2, 3), "newtrace": (1,)}
#: The artefact's Gavel: total throughput as it is, rounds of six minutes, nothing ever forgotten.
POLICIES = {
    "sia": ({}, 60.0),
    "gavel": (
        {"objective": "throughput", "relative": False, "spare": True, "reset_seconds": 864_000.0},
        360.0,
    ),
}


def average_hours(shared, trace, workload, policy):
    folder = shared / "data" / "sia"
    path = folder / "workloads" / trace / f"workload-{workload}.csv"

    def files(name):
        place = folder / "profiles" / name
        return place.read_text() if place.is_file() else None

    world = SiaWorld(
        Setup(
            trace=read_sia(path.read_text(), path.name),
            cluster=read_cluster("aws:6x4,dgx-ext:2x8,rtx:3x8"),
            files=files,
            interval=POLICIES[policy][1],
        )
    )
    args = POLICIES[policy][0]
    ticks = itertools.count()
    result = simulate(
        world,
        make_policy(policy, args),
        rules="sia",
        workload=path.name,
        timer=lambda: float(next(ticks)),
    )
    assert result.fallbacks == ()
    return mean(result.jcts) / 3600.0


@pytest.mark.soak
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("trace", SETS)
def test_average_completion_times_are_within_five_percent(shared_dir, trace, policy):
    rows = csv.DictReader((shared_dir / "specs" / "sia-measured.csv").read_text().splitlines())
    measured = mean(
        float(row["avg_jct_h"])
        for row in rows
        if row["policy"] == policy and row["trace"] == trace
    )

    ours = mean(average_hours(shared_dir, trace, workload, policy) for workload in SETS[trace])

    assert ours == pytest.approx(measured, rel=0.05)
