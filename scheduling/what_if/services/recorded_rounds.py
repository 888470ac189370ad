"""Stored rounds of a period as input of a simulation: first snapshot, arrivals and changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from scheduling.core.round.stored import UnreadableRoundError, read_stored, read_value
from scheduling.core.simulation import ClusterChange, QueueChange
from scheduling.core.simulation.events import Event
from scheduling.core.values import ClusterSnapshot, JobFacts, QueuedJob
from scheduling.rounds.models import Round
from scheduling.rounds.services.evidence import read_round
from scheduling.storage.base import FileStorage

_OF_CLUSTER: Final = ("spec", "topology_version", "vcs", "nodes", "bad_devices", "storages")
_OF_OWNER: Final = (
    "held", "priority", "job_class", "demand", "not_before", "user_cap", "after_failed", "turn_of",
)  # fmt: skip
"""Fields of a waiting job that its owner, an admin or its sweep changes."""


@dataclass(slots=True, kw_only=True)
class RecordedRounds:
    """The stored rounds of a period.

    Attributes:
        start: snapshot of the first stored round.
        arrivals: jobs that first appear in later rounds, in their queued state, by ID.
        known: job facts in the first round with the job; jobs without facts are omitted.
        latest: newest job facts, from which speeds are fitted.
        events: changes of the cluster, and of jobs before their first start.
    """

    start: ClusterSnapshot
    arrivals: dict[int, QueuedJob] = field(default_factory=dict)
    known: dict[int, JobFacts] = field(default_factory=dict)
    latest: dict[int, JobFacts] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)


def recorded_rounds(stored: Sequence[Round], storage: FileStorage) -> RecordedRounds | None:
    """Read stored rounds in ascending order; None without a readable round."""
    reader: _Reader | None = None
    for row in stored:
        try:
            document = read_round(storage=storage, stored=row)
            if reader is None:
                reader = _Reader(document)
            else:
                reader.add(document["snapshot"])
        except (FileNotFoundError, UnreadableRoundError, ValueError):
            continue  # pruned meanwhile, or damaged: the other rounds are still valid
    return reader.close() if reader is not None else None


class _Reader:
    """Compares each stored snapshot with the previous one; parses only changes."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        start, _ = read_stored(document)
        raw = document["snapshot"]
        self._found = RecordedRounds(start=start, known=dict(start.known))
        self._cluster = _of_cluster(raw)
        self._spec = raw["spec"], start.spec
        self._waiting = {job["id"]: _of_owner(job) for job in raw["queued"]}
        self._started = {job["id"] for job in raw["holding"]}
        self._latest: dict[int, Any] = {}
        self._note_facts(raw)

    def add(self, raw: Mapping[str, Any]) -> None:
        """Add the snapshot of the next stored round."""
        now = float(raw["now"])
        cluster = _of_cluster(raw)
        if cluster != self._cluster:
            change = _cluster_change(raw, now)
            if raw["spec"] == self._spec[0]:
                # One object for equal cells: a change of the guarantee is computed once for it.
                change = replace(change, spec=self._spec[1])
            self._spec = raw["spec"], change.spec
            self._cluster = cluster
            self._found.events.append(change)
        for job in raw["queued"]:
            self._add_queued(job, raw, now)
        for job in raw["holding"]:
            job_id = job["id"]
            if job_id not in self._waiting and job_id not in self._started:
                # The rounds in which it waited are not stored any more.
                self._arrive(_as_queued(job), raw)
            self._started.add(job_id)
        self._note_facts(raw)

    def close(self) -> RecordedRounds:
        """Return everything that was read."""
        self._found.latest = {
            job_id: read_value(JobFacts, facts) for job_id, facts in self._latest.items()
        }
        return self._found

    def _add_queued(self, job: Mapping[str, Any], raw: Mapping[str, Any], now: float) -> None:
        job_id, own = job["id"], _of_owner(job)
        before = self._waiting.get(job_id)
        if before is None and job_id not in self._started:
            self._arrive(job, raw)
        elif before is not None and before != own and job_id not in self._started:
            queued = replace(read_value(QueuedJob, job), claims=None, waiting_for=())
            self._found.events.append(QueueChange(at=now, job_id=job_id, job=queued))
        self._waiting[job_id] = own

    def _arrive(self, job: Mapping[str, Any], raw: Mapping[str, Any]) -> None:
        job_id = job["id"]
        queued = read_value(QueuedJob, {**job, "claims": None, "waiting_for": ()})
        self._found.arrivals[job_id] = queued
        facts = raw.get("known", {}).get(str(job_id))
        if facts is not None:
            self._found.known[job_id] = read_value(JobFacts, facts)

    def _note_facts(self, raw: Mapping[str, Any]) -> None:
        for job_id, facts in raw.get("known", {}).items():
            self._latest[int(job_id)] = facts


def _of_cluster(raw: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the cluster in a stored snapshot, without the results of rounds."""
    spec, version, vcs, nodes, bad, storages = (raw.get(name) for name in _OF_CLUSTER)
    return (
        spec,
        version,
        _without(vcs, "policy_state", "policy_fault"),
        _without(nodes, "owner"),
        bad,
        storages,
    )


def _without(values: Any, *names: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in value.items() if k not in names} for value in values or ()]


def _of_owner(job: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(job.get(name) for name in _OF_OWNER)


def _as_queued(holding: Mapping[str, Any]) -> dict[str, Any]:
    same = ("id", "vc", "tenant", "owner", "priority", "job_class", "demand", "submitted")
    return {**{name: holding[name] for name in same}, "owner_name": ""}


def _cluster_change(raw: Mapping[str, Any], now: float) -> ClusterChange:
    bare = read_value(ClusterSnapshot, {**raw, "queued": (), "holding": (), "known": {}})
    return ClusterChange(
        at=now,
        spec=bare.spec,
        topology_version=bare.topology_version,
        vcs=tuple(replace(vc, policy_state={}, policy_fault="") for vc in bare.vcs),
        nodes=bare.nodes,
        bad_devices=bare.bad_devices,
        device_memory=bare.device_memory,
        storages=bare.storages,
        cpu_pools=bare.cpu_pools,
    )
