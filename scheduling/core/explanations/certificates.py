"""Certificates: reasons that can be verified against the stored snapshot of their round.

A certificate contains the round, the hash of its snapshot, the job, the code, the sentence and the
countable numbers. ``check`` counts again from the snapshot alone and decides the round again: both
must agree.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from scheduling.core.cells.requests import OPPORTUNISTIC
from scheduling.core.jobspec import JobClass
from scheduling.core.policies.queues.ordered import Fifo
from scheduling.core.round.decide import decide
from scheduling.core.round.engine_setup import empty_engine, guaranteed_devices
from scheduling.core.round.gates import closed_gate
from scheduling.core.round_result import RoundResult, Start
from scheduling.core.values import ClusterSnapshot, HeldLeaf, HoldingJob, QueuedJob
from tessera.reasons import ReasonCode

VERSION: Final = 1
_CAPS: Final = frozenset({ReasonCode.USER_CAP_REACHED, ReasonCode.EXCEEDS_USER_MAX})


class CertificateError(ValueError):
    """The reason cannot be certified, or the document is not a valid certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Certificate why a job waited in one round.

    Attributes:
        round_number: round number of the round that decided.
        snapshot: SHA-256 of the stored round.
        kind: kind of the facts: gate, cap, count or search.
        facts: numbers to count again; empty if only a search decides.
        stood_in: virtual clusters (by id) whose policy failed, so FIFO decided.
    """

    job: int
    round_number: int
    snapshot: str
    code: str
    text: str
    kind: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    stood_in: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a document that ``from_json`` reads."""
        return {
            "version": VERSION,
            "job": self.job,
            "round": self.round_number,
            "snapshot": self.snapshot,
            "code": self.code,
            "text": self.text,
            "kind": self.kind,
            "facts": dict(self.facts),
            "stood_in": list(self.stood_in),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Certificate":
        """Parse the output of ``to_json``.

        Raises:
            CertificateError: not valid.
        """
        try:
            if document["version"] != VERSION:
                raise CertificateError(f"version {document['version']!r} is unknown")
            return cls(
                job=int(document["job"]),
                round_number=int(document["round"]),
                snapshot=str(document["snapshot"]),
                code=str(document["code"]),
                text=str(document["text"]),
                kind=str(document["kind"]),
                facts=dict(document["facts"]),
                stood_in=tuple(int(one) for one in document["stood_in"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CertificateError(f"not a certificate: {error!r}") from error


def certify(
    job_id: int, snapshot: ClusterSnapshot, result: RoundResult, *, sha256: str
) -> Certificate:
    """Build the certificate of a job's reason in a stored round.

    Raises:
        CertificateError: the job did not wait in that round.
    """
    reason = result.reasons.get(job_id)
    job = next((one for one in snapshot.queued if one.id == job_id), None)
    if reason is None or job is None:
        raise CertificateError(f"job {job_id} did not wait in round {snapshot.round_number}")
    kind, facts = _facts(job, reason.code, snapshot, result.starts)
    return Certificate(
        job=job_id,
        round_number=snapshot.round_number,
        snapshot=sha256,
        code=reason.code.value,
        text=reason.text,
        kind=kind,
        facts=facts,
        stood_in=tuple(sorted(vc for vc, fault in result.policy_faults.items() if fault)),
    )


def check(certificate: Certificate, snapshot: ClusterSnapshot) -> bool:
    """Check a certificate against a snapshot; the result is deterministic on every machine."""
    job = next((one for one in snapshot.queued if one.id == certificate.job), None)
    if job is None or certificate.round_number != snapshot.round_number:
        return False
    again = decide(_with_stand_ins(snapshot, certificate.stood_in), trials=0)
    reason = again.reasons.get(job.id)
    if reason is None or (reason.code.value, reason.text) != (certificate.code, certificate.text):
        return False
    kind, facts = _facts(job, reason.code, snapshot, again.starts)
    return kind == certificate.kind and facts == dict(certificate.facts) and _adds_up(kind, facts)


def _facts(
    job: QueuedJob, code: ReasonCode, snapshot: ClusterSnapshot, starts: Collection[Start]
) -> tuple[str, dict[str, Any]]:
    gate = closed_gate(job, snapshot.now)
    if gate is not None and gate.code is code:
        return "gate", {
            "held": job.held,
            "not_before": job.not_before,
            "backoff_until": job.backoff_until,
            "after": [*job.after, *job.after_failed],
        }
    if code in _CAPS:
        return "cap", _cap(job, snapshot, {start.job_id for start in starts})
    if code is ReasonCode.VC_GUARANTEE_IN_USE:
        facts = _count(job, snapshot, starts)
        if _adds_up("count", facts):
            return "count", facts
    return "search", {}


def _cap(job: QueuedJob, snapshot: ClusterSnapshot, started: set[int]) -> dict[str, Any]:
    """Count the person's devices in the virtual cluster and in the tenant, with both caps."""
    (vc,) = (vc for vc in snapshot.vcs if vc.id == job.vc)
    mine = [
        one for one in _devices(snapshot, started) if (one[2], one[3]) == (job.tenant, job.owner)
    ]
    return {
        "wants": job.demand.devices,
        "cap": vc.max_devices_per_user,
        "held": {str(one[0]): one[4] for one in mine if one[1] == job.vc},
        "cap_in_tenant": job.user_cap,
        "held_in_tenant": {str(one[0]): one[4] for one in mine},
    }


def _count(job: QueuedJob, snapshot: ClusterSnapshot, starts: Collection[Start]) -> dict[str, Any]:
    """Count the guarantee in usable types, and its holders of at least the job's priority."""
    (vc,) = (vc for vc in snapshot.vcs if vc.id == job.vc)
    engine = empty_engine(snapshot.spec)
    guaranteed = guaranteed_devices(engine, vc.name)
    named = {kind for member in job.demand.members for kind in member.device_types}
    kinds = named or set(guaranteed)
    chains = engine.topology.chains
    of_kind = {
        address
        for address, (chain, _) in engine.topology.leaves.items()
        if chains[chain].leaf_type in kinds
    }
    held = {
        one: sum(leaf.address in of_kind for leaf in leaves)
        for one, leaves in sorted(_guaranteed_holds(job, snapshot, starts))
    }
    return {
        "wants": job.demand.devices,
        "guaranteed": sum(n for kind, n in guaranteed.items() if kind in kinds),
        "held": {str(one): devices for one, devices in held.items() if devices},
        "in_use": sum(
            sum(leaf.address in of_kind for leaf in leaves)
            for _, leaves in _guaranteed_holds(job, snapshot, starts, above=OPPORTUNISTIC)
        ),
    }


def _guaranteed_holds(
    job: QueuedJob,
    snapshot: ClusterSnapshot,
    starts: Collection[Start],
    *,
    above: int | None = None,
) -> Iterator[tuple[int, list[HeldLeaf]]]:
    """Yield jobs of at least a priority with their share of the guarantee after the round.

    Args:
        job: its virtual cluster counts.
        snapshot: snapshot of the round.
        starts: starts of the round.
        above: the priority; None for that of ``job``, which cannot preempt these jobs.
    """
    least = job.priority if above is None else above
    for one in snapshot.holding:
        leaves = [leaf for member in one.members for leaf in member]
        if _holds_guarantee(one, job, least) and all(leaf.virtual for leaf in leaves):
            yield one.id, leaves
    waiting = {one.id: one for one in snapshot.queued}
    for start in starts:
        if _holds_guarantee(waiting[start.job_id], job, least):
            yield start.job_id, [leaf for member in start.members for leaf in member.leaves]


def _holds_guarantee(one: HoldingJob | QueuedJob, job: QueuedJob, least: int) -> bool:
    is_borrower = one.job_class is JobClass.OPPORTUNISTIC
    return one.vc == job.vc and one.priority >= least and not is_borrower


def _devices(snapshot: ClusterSnapshot, started: set[int]) -> list[tuple[int, int, int, int, int]]:
    """Return job, virtual cluster, tenant, owner and devices of all holders after the round."""
    held = [(job.id, job.vc, job.tenant, job.owner, job.devices) for job in snapshot.holding]
    fresh = [
        (job.id, job.vc, job.tenant, job.owner, job.demand.devices)
        for job in snapshot.queued
        if job.id in started
    ]
    return sorted(held + fresh)


def _adds_up(kind: str, facts: Mapping[str, Any]) -> bool:
    """Return whether the numbers alone prove that the job cannot start."""
    if kind == "cap":
        pairs = (("cap", "held"), ("cap_in_tenant", "held_in_tenant"))
        return any(
            facts[cap] is not None
            and bool(sum(facts[held].values()) + facts["wants"] > facts[cap])
            for cap, held in pairs
        )
    if kind == "count":
        free: int = facts["guaranteed"] - sum(facts["held"].values())
        wanted: int = facts["wants"]
        return free < wanted
    return True


def _with_stand_ins(snapshot: ClusterSnapshot, stood_in: tuple[int, ...]) -> ClusterSnapshot:
    return replace(
        snapshot,
        vcs=tuple(
            replace(vc, policy=Fifo.name, policy_args={}) if vc.id in stood_in else vc
            for vc in snapshot.vcs
        ),
    )
