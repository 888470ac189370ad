"""A small cluster with step times for it, for tests of the rules ``crius``."""

import json

from benchmarks.reproductions.crius.devices import layout_of
from benchmarks.reproductions.crius.jobs import Job, Judge, Request
from benchmarks.reproductions.crius.steptimes import SEARCH_ORDER, StepTimes
from scheduling.core.simulation.setups import Setup
from scheduling.core.workloads.clusters import read_cluster
from scheduling.core.workloads.traces import Trace, TraceJob

CLUSTER = read_cluster("a100:2x4,v100:1x8,a40:4x2")
SIZES = (1, 2, 4, 8)
#: Speed of one device.
SPEEDS = {"a100": 40.0, "v100": 24.0, "a40": 16.0}
MODEL = "bert__760M"
SLOW_MODEL = "bert__2.6B"


def layout():
    return layout_of(CLUSTER, SEARCH_ORDER)


def table_of_times(speeds=None):
    """Step times on the best locality; twice the devices give 1.8 times the speed."""
    rows: dict[str, dict[str, float]] = {}
    for model, slowness in (("bert_760M_128", 1.0), ("bert_2.6B_128", 4.0)):
        rows[model] = {}
        for kind, speed in (speeds or SPEEDS).items():
            for size in SIZES:
                best = layout().best(kind, size)
                seconds = 128 * slowness / (speed * 1.8 ** (size.bit_length() - 1))
                rows[model][f"{best.nodes}_{kind}_{best.nodes}_n_{best.each}_d"] = seconds
    return rows


def judge(speeds=None):
    return Judge(times=StepTimes(layout(), table_of_times(speeds), {}), interval=300.0)


def job(index, kind="a100", devices=1, *, model=MODEL, batch=128):
    return Job(
        index=index,
        name=f"job-{index}",
        model=model,
        batch=batch,
        steps=100.0,
        left=100.0,
        submitted=0.0,
        deadline=1e9,
        shape=layout().best(kind, devices),
    )


def request(one):
    return Request(one, one.kind, one.shape.devices)


def trace_job(name, submitted, kind="a100", devices=1, *, steps=500, model=MODEL):
    return TraceJob(
        name=name,
        submitted=submitted,
        devices=devices,
        steps=steps,
        application=model,
        batch=128,
        wish=kind,
    )


def files(name):
    return json.dumps({"optimal": table_of_times()}) if name == "prof_database.json" else None


def setup(jobs, policy, cluster=CLUSTER):
    trace = Trace(name="toy", format="crius", jobs=tuple(jobs))
    return Setup(trace=trace, cluster=cluster, files=files, policy=policy)
