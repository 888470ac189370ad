"""Prometheus metrics of the cluster at ``/metrics``, limited to the rights of the caller.

Names and meanings follow those of Kueue (``*_pending_workloads``, quotas) and KAI
(``queue_*_gpus``), so that their dashboards work after a rename of the prefix.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.views import APIView

from portal import health
from portal.api.authentication import viewer_from
from scheduling.clusters.queries.cluster import ClusterView, VcUse, cluster_snapshot
from scheduling.clusters.queries.conditions import gpu_labels
from scheduling.clusters.queries.shared_devices import cluster_sharing
from scheduling.core.lifecycle import TERMINAL, JobState
from scheduling.jobs.queries.jobs import JobFilter, counts_by_reason
from scheduling.notices.queries import delivery_counts
from scheduling.rounds.queries import RoundRow, recent_rounds
from scheduling.runs.queries.tallies import Waits, evictions_of, waits_of
from scheduling.watching.queries import idling_counts
from scheduling.what_if.queries import regrets_of
from scheduling.what_if.services.what_if import KEPT_REGRET
from tenants.clock import database_now
from tenants.viewers import Viewer
from workers.services.telemetry import current_readings

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class ExpositionSample:
    """One number with its labels; ``suffix`` (such as ``_sum``) follows the name of the family."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of one name: a gauge, a counter, a summary or a histogram."""

    name: str
    kind: str
    words: str
    samples: tuple[ExpositionSample, ...]


def exposition(families: Iterable[Family]) -> str:
    """Render metric families in the text exposition format; empty families are omitted."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    if not family.samples:
        return
    words = family.words.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {family.name} {words}"
    yield f"# TYPE {family.name} {family.kind}"
    for sample in family.samples:
        pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
        labels = f"{{{pairs}}}" if pairs else ""
        yield f"{family.name}{sample.suffix}{labels} {float(sample.value):.15g}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_VC_GAUGES: Final = (
    ("nominal_quota", "Devices guaranteed (Kueue nominal quota).", "guarantee"),
    ("quota_used", "Guaranteed devices in use by jobs of the virtual cluster.", "used"),
    ("quota_borrowed", "Devices in use beyond the guarantee.", "borrowed"),
    ("quota_lent", "Guaranteed devices that other virtual clusters use now.", "lent"),
    ("quota_unhealthy", "Guaranteed devices that are unhealthy.", "unhealthy"),
    ("quota_cordoned", "Guaranteed devices on cordoned or draining nodes.", "cordoned"),
    ("queue_deserved_gpus", "Nominal quota under the name that KAI uses.", "guarantee"),
    # A virtual cluster has no fair share beyond its guarantee, so both metrics are equal.
    ("queue_fair_share_gpus", "Devices of the fair share (KAI): the guarantee.", "guarantee"),
    ("pending_devices", "Devices requested by waiting jobs.", "queued"),
    ("pending_workloads", "Waiting jobs.", "queued_jobs"),
    ("admitted_active_workloads", "Jobs that hold devices.", "running_jobs"),
)


class MetricsView(APIView):
    """View that serves metrics to a Prometheus token or a signed-in browser."""

    schema = None

    def get(self, request: Request) -> HttpResponse:
        text = exposition(families(viewer_from(request), database_now()))
        answer = HttpResponse(text, content_type=CONTENT_TYPE)
        answer.headers["Cache-Control"] = "private, no-store"
        return answer


def families(viewer: Viewer, now: datetime) -> Iterator[Family]:
    """Return all metrics; virtual clusters of other tenants are omitted."""
    view = cluster_snapshot(viewer, now=now)
    yield from _cluster_families(view)
    for name, words, attribute in _VC_GAUGES:
        yield _vc_family(name, words, attribute, view)
    allocated = tuple(
        ExpositionSample(use.used + use.borrowed, _labels(use)) for use in view.virtual_clusters
    )
    yield Family("tessera_queue_allocated_gpus", "gauge", "Devices in use (KAI).", allocated)
    yield _gauges(
        "pending_workloads_by_reason",
        "Waiting jobs by reason code; the code is empty before the first round.",
        "reason",
        counts_by_reason(viewer, JobFilter()),
    )
    yield _wait_family(view)
    yield _eviction_family(view)
    yield _idle_family(viewer, view)
    yield from _sharing_families(viewer, now)
    yield from _regret_families(viewer, view, now)
    if viewer.is_cluster_admin and viewer.bound_tenant_id is None:
        words = "Deliveries of notifications: pending, and failed in the last 30 days."
        yield _gauges("notification_deliveries", words, "state", delivery_counts())
        yield from _part_families(now)
        yield from _gpu_families(now)
    newest = recent_rounds(viewer, limit=1).results
    if newest:
        yield from _round_families(newest[0], now)


def _cluster_families(view: ClusterView) -> Iterator[Family]:
    totals = view.totals
    devices = {
        "total": totals.devices,
        "healthy": totals.healthy,
        "in_use": totals.in_use,
        "borrowed": totals.borrowed,
        "gpu": totals.gpus,
    }
    yield _gauges("devices", "Devices of the cluster.", "kind", devices)
    nodes = Counter(node.state for node in view.nodes)
    yield _gauges("nodes", "Nodes by state.", "state", dict(sorted(nodes.items())))
    live = {state.value: totals.jobs[state] for state in JobState if state not in TERMINAL}
    yield _gauges("jobs", "Live jobs that you may see, by state.", "state", live)
    idle = {free.chain: free.idle for free in view.free}
    yield _gauges("idle_devices", "Devices that are available to a job now.", "chain", idle)


def _vc_family(name: str, words: str, attribute: str, view: ClusterView) -> Family:
    samples = (
        ExpositionSample(getattr(use, attribute), _labels(use)) for use in view.virtual_clusters
    )
    return Family(f"tessera_{name}", "gauge", words, tuple(samples))


def _wait_family(view: ClusterView) -> Family:
    found = waits_of([use.id for use in view.virtual_clusters])
    return Family(
        "tessera_admission_wait_time_seconds",
        "histogram",
        "Time from submission to the first start of a job.",
        tuple(
            sample
            for use in view.virtual_clusters
            for sample in _histogram(found[use.id], _labels(use))
        ),
    )


def _histogram(waits: Waits, labels: Mapping[str, str]) -> Iterator[ExpositionSample]:
    for bound, number in waits.within:
        yield ExpositionSample(number, {**labels, "le": bound}, "_bucket")
    yield ExpositionSample(waits.seconds, labels, "_sum")
    yield ExpositionSample(sum(waits.counts), labels, "_count")


def _eviction_family(view: ClusterView) -> Family:
    labels = {use.id: _labels(use) for use in view.virtual_clusters}
    counted = evictions_of(list(labels))
    return Family(
        "tessera_evicted_workloads_total",
        "counter",
        "Number of times that a job lost its devices before it ended, by reason.",
        tuple(
            ExpositionSample(number, {**labels[vc_id], "reason": reason})
            for (vc_id, reason), number in counted.items()
        ),
    )


def _idle_family(viewer: Viewer, view: ClusterView) -> Family:
    counted = idling_counts(viewer)
    samples = (
        ExpositionSample(counted.get(use.id, 0), _labels(use)) for use in view.virtual_clusters
    )
    words = "Running jobs with an idle warning, among the jobs that you may see."
    return Family("tessera_idle_workloads", "gauge", words, tuple(samples))


def _sharing_families(viewer: Viewer, now: datetime) -> Iterator[Family]:
    """Yield the totals of device sharing; labels never name jobs or tenants."""
    found = cluster_sharing(viewer, now=now)
    states = dict.fromkeys(("closed", "frozen", "leaving", "open", "unknown"), 0) | dict(
        found.guests
    )
    yield _gauges("guests", "Guests on devices in use, by state.", "state", states)
    states = dict.fromkeys(("closed", "frozen", "leaving", "open", "suspended", "unknown"), 0)
    words = "Jobs that a policy has paired with the holder of their device, by state."
    yield _gauges("paired_jobs", words, "state", states | dict(found.peers))
    tiers = dict.fromkeys(("T0", "T1", "T2"), 0) | dict(found.suspended)
    words = "Jobs that wait for their turn on a device now, by suspension tier."
    yield _gauges("suspended_jobs", words, "tier", tiers)
    numbers = (
        ("devices_with_guests", "gauge", "Devices with at least one guest.", found.devices),
        (
            "holders_over_limit",
            "gauge",
            "Holders with a loss above their limit in a minute of the last 24 hours.",
            found.over_limit,
        ),
        (
            "guest_delay_seconds_today",
            "gauge",
            "Delay of holders by guests since midnight UTC.",
            found.delay_seconds,
        ),
    )
    for name, kind, words, value in numbers:
        yield Family(f"tessera_{name}", kind, words, (ExpositionSample(value),))
    if found.loss_p95 is not None:
        words = "Loss of holders by guests in the newest reports, as a share of their pace."
        sample = ExpositionSample(found.loss_p95, {"quantile": "0.95"})
        yield Family("tessera_holder_loss_ratio", "gauge", words, (sample,))
    if found.pair_loss_p95 is not None:
        words = "Loss of holders by an equal in the newest reports, as a share of their pace."
        sample = ExpositionSample(found.pair_loss_p95, {"quantile": "0.95"})
        yield Family("tessera_pair_loss_ratio", "gauge", words, (sample,))


def _regret_families(viewer: Viewer, view: ClusterView, now: datetime) -> Iterator[Family]:
    """Return the regret of each policy in force, by the newest advice of the last 31 days."""
    found = regrets_of(viewer, since=now - KEPT_REGRET)
    rows = [(use, found[use.id]) for use in view.virtual_clusters if use.id in found]
    yield Family(
        "tessera_policy_regret_seconds",
        "gauge",
        "Mean completion time under the policy in force minus that under the best policy, in "
        "replays.",
        tuple(
            ExpositionSample(
                regret.seconds, {**_labels(use), "policy": regret.policy, "best": regret.best}
            )
            for use, regret in rows
        ),
    )
    yield Family(
        "tessera_policy_regret_age_seconds",
        "gauge",
        "Time since the replays from which the regret was computed.",
        tuple(
            ExpositionSample(max(0.0, (now - regret.at).total_seconds()), _labels(use))
            for use, regret in rows
        ),
    )


def _round_families(newest: RoundRow, now: datetime) -> Iterator[Family]:
    age = max((now - newest.committed_at).total_seconds(), 0.0)
    numbers = (
        ("rounds_total", "counter", "Rounds committed so far.", newest.number),
        ("round_age_seconds", "gauge", "Time since the newest round.", age),
        (
            "round_duration_seconds",
            "gauge",
            "Duration of the newest round.",
            newest.duration_ms / 1000,
        ),
        ("round_started_jobs", "gauge", "Jobs started by the newest round.", newest.started),
        ("round_preempted_jobs", "gauge", "Jobs preempted by the newest round.", newest.preempted),
    )
    for name, kind, words, value in numbers:
        yield Family(f"tessera_{name}", kind, words, (ExpositionSample(value),))


def _part_families(now: datetime) -> Iterator[Family]:
    states = {part.name: int(part.is_ok) for part in health.parts()}
    words = "Whether a part of the control plane works, as in /readyz (1 or 0)."
    yield _gauges("part_ok", words, "part", states)
    hosts = health.host_rows(now)
    words = "Offset of the host clock from the database clock; positive: the host is ahead."
    yield _host_family("host_clock_skew_seconds", words, hosts, "skew_seconds")
    words = "Free bytes of the data directory's file system."
    yield _host_family("data_disk_free_bytes", words, hosts, "free_bytes")
    words = "Size of the data directory's file system."
    yield _host_family("data_disk_size_bytes", words, hosts, "total_bytes")


def _gpu_families(now: datetime) -> Iterator[Family]:
    """Yield the newest temperature and power of each GPU."""
    labels = gpu_labels()
    readings = current_readings(node_ids={node_id for node_id, _ in labels}, now=now)
    for key, words in (
        ("temperature", "Temperature of a GPU in degrees Celsius."),
        ("power", "Power of a GPU in watts."),
    ):
        values = (
            (index, labels[node_id, index], values[index])
            for node_id, index in labels
            for values in [readings.get(node_id, {}).get(key) or ()]
            if index < len(values) and values[index] is not None
        )
        samples = tuple(
            ExpositionSample(value, {"node": name, "device": str(index), "uuid": uuid})
            for index, (name, uuid), value in values
        )
        unit = {"temperature": "celsius", "power": "watts"}[key]
        yield Family(f"tessera_gpu_{key}_{unit}", "gauge", words, samples)


def _host_family(name: str, words: str, hosts: Sequence[health.HostRow], attribute: str) -> Family:
    values = ((host.name, getattr(host, attribute)) for host in hosts)
    samples = tuple(
        ExpositionSample(value, {"host": host}) for host, value in values if value is not None
    )
    return Family(f"tessera_{name}", "gauge", words, samples)


def _gauges(name: str, words: str, label: str, values: Mapping[str, int]) -> Family:
    samples = tuple(ExpositionSample(value, {label: key}) for key, value in values.items())
    return Family(f"tessera_{name}", "gauge", words, samples)


def _labels(use: VcUse) -> dict[str, str]:
    return {"virtual_cluster": use.name, "tenant": use.tenant}
