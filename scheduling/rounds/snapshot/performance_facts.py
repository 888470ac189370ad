"""Job facts for policies: declared values, past use, and reported progress.

They are read in two queries (three or four for variable batches), only for virtual clusters whose
policies use them. One more query reads device properties.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from django.db.models import Q, QuerySet, TextField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from scheduling.clusters.models import Node
from scheduling.core.charging import charged_seconds
from scheduling.core.jobspec import Demand
from scheduling.core.lifecycle import LIVE
from scheduling.core.performance.batch_profiles import (
    BatchProfile,
    BatchProfileError,
    read_batch_profile,
)
from scheduling.core.performance.executors import OWN_FAULTS, executors_in, shared_by, sharing_of
from scheduling.core.performance.losses import TOLD, read_losses
from scheduling.core.performance.reverts import slower_sizes
from scheduling.core.policy_interface import Facts, Terms
from scheduling.core.round.declared_terms import read_terms
from scheduling.core.round.parallel_plans import BATCHES_PREFIX
from scheduling.core.values import JobFacts, RunObservation, Timed
from scheduling.jobs.models import Job
from scheduling.parallelism.models import ModelProfile
from scheduling.runs.models import Attempt, StepTally


class _Run(NamedTuple):
    """Columns of one attempt of a live job."""

    job_id: int
    created_at: datetime
    running_at: datetime | None
    ended_at: datetime | None
    devices: int
    device_type: str
    nodes: int
    seconds: float | None
    steps: int | None
    samples: float | None
    last_step: int | None
    loss: float | None
    noise_square: float | None
    noise_variance: float | None
    losses: str | None
    busy: float | None
    memory_peak: int | None
    layout: Sequence[Sequence[int]] | None
    failure_class: str
    is_beside: bool
    largest_parameter: int | None
    parameter_bytes: int | None


class _Row(NamedTuple):
    """Columns of a live job."""

    job_id: int
    demand: Mapping[str, Any]
    terms: Mapping[str, Any]
    tenant: int
    gpu_seconds: float
    fingerprint: str


def known_of(
    using: str, virtual_clusters: Collection[int], now: datetime
) -> Mapping[int, JobFacts]:
    """Return the job facts of the live jobs of some virtual clusters, by job ID."""
    if not virtual_clusters:
        return {}
    jobs: QuerySet[Job] = (
        Job.objects.unscoped()
        .using(using)
        .filter(virtual_cluster__in=list(virtual_clusters), state__in=list(LIVE))
        .exclude(devices=0)
    )
    return _known_of(using, jobs, now)


def known_of_job(job: Job, now: datetime) -> JobFacts:
    """Return the job facts of one job, live or ended."""
    rows = Job.objects.unscoped().using("default").filter(pk=job.pk)
    return _known_of("default", rows, now)[job.pk]


def _known_of(using: str, jobs: "QuerySet[Job]", now: datetime) -> Mapping[int, JobFacts]:
    runs: dict[int, list[_Run]] = defaultdict(list)
    for row in (
        Attempt.objects.using(using)
        .filter(job__in=jobs.values("pk"))
        .order_by("job_id", "number")
        .annotate(losses_text=Cast("progress__losses", TextField()))
        .values_list(
            "job_id", "created_at", "running_at", "ended_at", "devices", "device_type", "nodes",
            "progress__seconds", "progress__steps", "progress__samples", "progress__last_step",
            "progress__loss", "progress__noise_square", "progress__noise_variance",
            "losses_text", "use__busy", "use__memory_peak", "layout", "failure_class", "is_guest",
            "progress__largest_parameter", "progress__parameter_bytes",
        )
    ):  # fmt: skip
        runs[row[0]].append(_Run(*row))
    rows = [
        _Row._make(row)
        for row in jobs.order_by("id").values_list(
            "id", "demand", "terms", "tenant_id", "gpu_seconds", "model_fingerprint"
        )
    ]
    profiles = batch_profiles(using, {(row.tenant, row.fingerprint) for row in rows})
    timed = timed_steps(using, [row.job_id for row in rows if "batch" in row.terms])
    return {
        row.job_id: _with_profiles(
            _known(row, runs.get(row.job_id, ()), timed.get(row.job_id, ()), now),
            profiles.get((row.tenant, row.fingerprint), ()),
        )
        for row in rows
    }


def batch_profiles(
    using: str, models: Collection[tuple[int, str]]
) -> Mapping[tuple[int, str], tuple[BatchProfile, ...]]:
    """Return the profiles of variable batches, by tenant and fingerprint.

    Fingerprints of other models are ignored; without any, there is no query.
    """
    wanted = [model for model in sorted(models) if model[1].startswith(BATCHES_PREFIX)]
    if not wanted:
        return {}
    found: dict[tuple[int, str], list[BatchProfile]] = defaultdict(list)
    same = (Q(tenant=tenant, fingerprint=fingerprint) for tenant, fingerprint in wanted)
    for tenant, fingerprint, kind, document in (
        ModelProfile.objects.unscoped()
        .using(using)
        .filter(Q(*same, _connector=Q.OR), measured_at__isnull=False)
        .order_by("device_type")
        .values_list("tenant_id", "fingerprint", "device_type", "document")
    ):
        try:
            found[tenant, fingerprint].append(read_batch_profile(document, device_type=kind))
        except BatchProfileError:
            continue  # of another version; a profile never stops a round
    return {model: tuple(profiles) for model, profiles in found.items()}


def _with_profiles(known: JobFacts, profiles: Sequence[BatchProfile]) -> JobFacts:
    """Add the profiled points, and the mean of the profiled noises."""
    if not profiles:
        return known
    noises = [profile.noise for profile in profiles if profile.noise is not None]
    count = len(noises)
    return replace(
        known,
        profile=tuple(point for profile in profiles for point in profile.points),
        profile_noise=(
            sum(one for one, _ in noises) / count,
            sum(two for _, two in noises) / count,
        )
        if count
        else None,
    )


def device_memory(using: str, devices: Iterable[tuple[int, int, str]]) -> Mapping[str, int]:
    """Return the memory of the smallest device of each type, in bytes.

    Devices whose nodes do not report their memory are ignored.

    Args:
        using: the database alias to read from.
        devices: node ID, index and type of each device.
    """
    nodes = Node.objects.using(using).filter(removed_at=None)
    rows = nodes.annotate(told=KeyTextTransform("devices", "inventory")).values_list(
        "id", "told", "type_memory"
    )
    told: dict[int, Mapping[int, int]] = {}
    by_type: dict[int, Mapping[str, int]] = {}
    for pk, text, types in rows:
        told[pk], by_type[pk] = _memory_by_index(text or "[]"), types
    found: dict[str, int] = {}
    for node, index, kind in devices:
        types = by_type.get(node)
        # Where types are mixed, the index of a leaf may be that of a GPU of another type.
        memory = types.get(kind, 0) if types else told.get(node, {}).get(index, 0)
        if memory > 0:
            found[kind] = min(memory, found.get(kind, memory))
    return found


@lru_cache(maxsize=4096)
def _memory_by_index(devices: str) -> Mapping[int, int]:
    """Return the memory in bytes of each device in a node's inventory, by index."""
    return {
        device["index"]: device.get("memory_bytes", 0)
        for device in json.loads(devices)
        if "index" in device
    }


def timed_steps(using: str, job_ids: Collection[int]) -> Mapping[int, tuple[Timed, ...]]:
    """Return step durations by batch of jobs with variable batches; one query if there are any."""
    if not job_ids:
        return {}
    found: dict[int, list[Timed]] = defaultdict(list)
    for job_id, kind, nodes, devices, batch, accumulation, steps, seconds in (
        StepTally.objects.using(using)
        .filter(attempt__job__in=list(job_ids), attempt__devices__gt=0)
        .order_by("attempt_id", "batch", "accumulation")
        .values_list(
            "attempt__job_id", "attempt__device_type", "attempt__nodes", "attempt__devices",
            "batch", "accumulation", "steps", "seconds",
        )
    ):  # fmt: skip
        found[job_id].append(
            Timed(
                type=kind,
                nodes=nodes,
                devices=devices,
                batch=batch,
                accumulation=accumulation,
                steps=steps,
                seconds=seconds,
            )
        )
    return {job_id: tuple(sorted(timed)) for job_id, timed in found.items()}


def _known(row: _Row, runs: Sequence[_Run], timed: tuple[Timed, ...], now: datetime) -> JobFacts:
    asked = Demand.from_json(row.demand)
    past = _Past(now=now)
    for run in runs:
        past.add(run, asked.devices)
    terms = read_terms(row.terms, asked, row.tenant)
    return JobFacts(
        terms=terms,
        facts=past.facts(row.gpu_seconds, terms),
        asked=asked,
        seen=tuple(past.seen),
        start_seconds=sum(past.starts) / len(past.starts) if past.starts else None,
        timed=timed,
        noise=past.noise,
    )


@dataclass(slots=True)
class _Past:
    """Sums over the attempts of one job."""

    now: datetime
    executed: float = 0.0
    open_seconds: float = 0.0
    by_type: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    last_run: float | None = None
    last_queued: float | None = None
    runs: int = 0
    recovering: bool = False
    steps: int = 0
    losses: list[tuple[float, float]] = field(default_factory=list)
    step_time: float | None = None
    seen: list[RunObservation] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    noise: tuple[float, float] | None = None
    last_step: int = -1
    util: float | None = None
    memory_peak: int | None = None
    skew: float | None = None
    executors: int = 1
    failed_executors: int | None = None

    def add(self, run: _Run, asked: int) -> None:
        """Add one attempt; call it in the order of attempt numbers."""
        until = run.ended_at or self.now
        seconds = charged_seconds(run.running_at, run.ended_at, until=self.now)
        devices = run.devices or asked
        self.runs += 1
        self.executed += seconds
        if run.device_type:
            self.by_type[run.device_type] += seconds * devices
        self.open_seconds = seconds * devices if run.ended_at is None else 0.0
        self.last_run = until.timestamp()
        self.last_queued = run.ended_at.timestamp() if run.ended_at else None
        self.recovering = run.ended_at is None and run.running_at is None
        if run.running_at is not None:
            self.starts.append(max(0.0, (run.running_at - run.created_at).total_seconds()))
        self._add_use(run)
        if run.largest_parameter and run.parameter_bytes:
            self.skew = run.largest_parameter / run.parameter_bytes
        executors = executors_in(run.layout, devices)
        self.executors = executors if run.ended_at is None else 1
        shared = shared_by(run.layout, devices)
        if shared and run.failure_class in OWN_FAULTS:
            self.failed_executors = min(shared, self.failed_executors or shared)
        self._add_progress(run, devices, executors)

    def _add_use(self, run: _Run) -> None:
        """Update the busy share (of the newest run) and the memory peak (of all runs)."""
        if run.busy is not None and not run.is_beside:
            self.util = run.busy
        if run.memory_peak is not None:
            self.memory_peak = max(self.memory_peak or 0, run.memory_peak)

    def _add_progress(self, run: _Run, devices: int, executors: int) -> None:
        if not run.steps or not run.seconds:
            return
        self.steps += run.steps
        if not run.is_beside:  # the speed on a part of a device is no fact of the job
            self.step_time = run.seconds / run.steps
        self.last_step = max(self.last_step, -1 if run.last_step is None else run.last_step)
        if run.noise_square is not None and run.noise_variance is not None:
            self.noise = (run.noise_square, run.noise_variance)
        self._add_losses(run)
        if run.device_type and not run.is_beside:
            self.seen.append(
                RunObservation(
                    type=run.device_type,
                    nodes=run.nodes,
                    devices=devices,
                    seconds=run.seconds,
                    steps=run.steps,
                    samples=run.samples or 0.0,
                    executors=executors,
                )
            )

    def _add_losses(self, run: _Run) -> None:
        kept = read_losses(run.losses) if run.losses else ()
        self.losses += kept
        if run.loss is None or run.last_step is None:
            return
        if not kept or run.last_step > kept[-1][0]:
            self.losses.append((float(run.last_step), run.loss))

    def facts(self, gpu_seconds: float, terms: Terms) -> Facts:
        """Return the job facts for a policy."""
        # A step with a larger batch is worth more than one with the initial batch.
        counted = terms.total_steps is not None and terms.batch is None
        left = max(0.0, (terms.total_steps or 0) - (self.last_step + 1.0)) if counted else None
        return Facts(
            executed=self.executed,
            gpu_seconds=gpu_seconds + self.open_seconds,
            by_type=dict(sorted(self.by_type.items())),
            last_run=self.last_run,
            last_queued=self.last_queued,
            restarts=max(0, self.runs - 1),
            recovering=self.recovering,
            steps_done=float(self.steps),
            steps_left=left,
            losses=tuple(self.losses[-TOLD:]),
            step_time=self.step_time,
            util=self.util,
            memory_peak=self.memory_peak,
            skew=self.skew,
            slower=slower_sizes(self.seen),
            executors=self.executors,
            sharing=self._sharing(terms),
        )

    def _sharing(self, terms: Terms) -> Mapping[str, tuple[float, ...]]:
        if terms.logical_workers is None:
            return {}
        return sharing_of(
            self.seen, terms.logical_workers, terms.executors, failed=self.failed_executors
        )
