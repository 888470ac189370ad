"""One decision of every policy, over 2,000 jobs on 2,000 devices.

The jobs are drawn with a fixed seed: gangs of 1 to 8, half of them elastic, two in five of them
running, with deadlines, estimates and progress, on two types of devices whose speeds are known.
Measured is the processor time of one call, the second of two rounds, so that a policy's
state exists. A policy that needs more than ``LONGEST`` is stopped and marked.
"""

import random
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from types import FrameType
from typing import Any, Final

from scheduling.core.jobspec import Demand, JobClass, MemberDemand, Within
from scheduling.core.policies import make_policy
from scheduling.core.policies.plans import settle
from scheduling.core.policy_interface import (
    Alloc,
    Facts,
    JobPhase,
    Kind,
    LinearModel,
    Part,
    PolicyJob,
    Pool,
    Scale,
    Snapshot,
    Terms,
    TypeInfo,
)

JOBS: Final = 2_000
DEVICES: Final = 2_000
#: Time limit of a policy in a live round.
BUDGET: Final = 5.0
LONGEST: Final = 30
ROUNDS: Final = 2
_NOW: Final = 1_000_000.0
_ROUND: Final = 60.0


def large_view(jobs: int = JOBS, devices: int = DEVICES, seed: int = 1) -> Snapshot:
    """A full virtual cluster with a long queue."""
    chance = random.Random(seed)
    types = {
        "a": TypeInfo(nodes=devices // 8, node_devices=4, speed=1.0),
        "b": TypeInfo(nodes=devices // 16, node_devices=8, speed=2.5),
    }
    free = dict.fromkeys(types, devices // 2)
    found = [_job(number, chance, free) for number in range(1, jobs + 1)]
    return Snapshot(
        now=_NOW,
        round_seconds=_ROUND,
        round_number=1,
        seed=seed,
        pool=Pool(capacity=dict.fromkeys(types, devices // 2), types=types),
        jobs=tuple(found),
        model=LinearModel(types),
    )


def plan_seconds(name: str, view: Snapshot) -> tuple[float, bool]:
    """Processor seconds of the last of some rounds, and whether it finished."""
    policy, state = make_policy(name, {}), dict[str, Any]()
    before = signal.signal(signal.SIGPROF, _stop)
    began = time.process_time()
    try:
        for number in range(ROUNDS):
            signal.setitimer(signal.ITIMER_PROF, LONGEST)
            began = time.process_time()
            plan, after = policy.plan(view, state)
            elapsed = time.process_time() - began
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            state, view = dict(after), _next(view, settle(view, plan), number + 2)
    except TimeoutError:
        return time.process_time() - began, False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
    return elapsed, True


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError


def _job(number: int, chance: random.Random, free: dict[str, int]) -> PolicyJob:
    gang = chance.choice((1, 1, 1, 2, 4, 8))
    is_elastic = number % 2 == 0
    age = chance.uniform(0.0, 36_000.0)
    kind = chance.choice(tuple(free))
    runs = chance.random() < 0.4 and free[kind] >= gang
    steps = chance.uniform(100.0, 40_000.0)
    if runs:
        free[kind] -= gang
    return PolicyJob(
        id=number,
        owner=chance.randrange(40),
        priority=chance.choice((0, 0, 10)),
        job_class=JobClass.GUARANTEED,
        submitted=_NOW - age,
        demand=Demand(
            members=(
                MemberDemand(
                    role="worker", count=1, devices=gang, device_types=(), within=Within.NODE
                ),
            )
        ),
        phase=JobPhase.RUNNING if runs else JobPhase.QUEUED,
        since=_NOW - age / 2,
        alloc=Alloc(parts=(Part(n=gang, type=kind, level="node"),)) if runs else None,
        terms=Terms(
            kind=Kind.ADAPTIVE if is_elastic else Kind.RIGID,
            scale=Scale(minimum=1, maximum=16) if is_elastic else None,
            deadline=_NOW + chance.uniform(3_600.0, 86_400.0) if number % 4 == 0 else None,
            estimate=steps / gang,
            application=f"app-{number % 25}",
            logical_workers=16 if is_elastic else None,
        ),
        facts=Facts(
            executed=age / 2 if runs else 0.0,
            gpu_seconds=gang * age / 2 if runs else 0.0,
            last_run=_NOW if runs else None,
            steps_left=steps,
            step_time=1.0 / gang if runs else None,
        ),
    )


def _next(view: Snapshot, held: Mapping[int, Alloc], number: int) -> Snapshot:
    """The next round, after execution of the plan."""
    now = view.now + _ROUND
    jobs = []
    for job in view.jobs:
        alloc = held.get(job.id)
        phase = JobPhase.RUNNING if alloc is not None else JobPhase.QUEUED
        since = job.since if phase is job.phase else now
        had = (job.alloc.devices if job.alloc is not None else 0) * _ROUND
        facts = replace(job.facts, gpu_seconds=job.facts.gpu_seconds + had)
        jobs.append(replace(job, phase=phase, since=since, alloc=alloc, facts=facts))
    return replace(view, now=now, round_number=number, jobs=tuple(jobs))
