"""Jobs that share devices as equals: plans, hosts and running pairs, as values for the round."""

from dataclasses import replace
from typing import Any

from scheduling.core.policy_interface import Alloc, Part, Plan, Share
from scheduling.core.round.decide import decide
from scheduling.core.sharing.hosts import Consent, GuestNeed, Host, SharingMode
from scheduling.core.values import HeldGuest, HeldPeer
from tests.factories.policies import making
from tests.factories.rounds import (
    LANGUAGE,
    NOW,
    VISION,
    VISION_MINE,
    cluster_snapshot,
    jobs_started_by,
    queued_job,
)

NEED = GuestNeed(floor=4, wants=4, application="1:name:a")
OFFER = Host(
    address="",
    type="a",
    mode=SharingMode.COOPERATIVE,
    isolation="user",
    tenant=VISION.tenant,
    consent=Consent.SAME_TENANT,
    slots=(),
    most_guests=1,
    memory_free=8,
    steady_seconds=30.0,
    steps=0,
    account_empty=False,
    pace=0.1,
    seconds_left=100.0,
)


def host_of(snapshot: Any, job_id: int, **changes: Any) -> Host:
    job = next(job for job in snapshot.holding if job.id == job_id)
    address = job.members[0][0].address
    place = {"address": address, "node": address.split("/")[0], "holder": job_id, "index": 0}
    return replace(OFFER, **{**place, **changes})


def plan_of(*groups: tuple[int, ...], turn_seconds: float = 0.0) -> Plan:
    allocs = {}
    for group in groups:
        name = "+".join(map(str, group))
        share = Share(fraction=1 / len(group), group=name, turn_seconds=turn_seconds)
        for job_id in group:
            part = Part(n=1, type="a")
            allocs[job_id] = Alloc(parts=(part,), share=share if len(group) > 1 else None)
    return Plan(allocs=allocs, order=tuple(allocs))


def running(*job_ids: int) -> Any:
    """Jobs with one device each, which have run for ten minutes."""
    started = jobs_started_by(cluster_snapshot(*(queued_job(job_id) for job_id in job_ids)))
    return tuple(replace(job, since=NOW - 600.0) for job in started)


def peer_of(snapshot: Any, holder: int, job_id: int, **changes: Any) -> HeldPeer:
    """A running job on the device of another one."""
    host = host_of(snapshot, holder)
    (job,) = running(job_id)
    held = replace(job, members=((replace(job.members[0][0], address=host.address, virtual=""),),))
    guest = HeldGuest(
        job=held, address=host.address, node=host.node, index=host.index, slot=1, holder=holder
    )
    return HeldPeer(guest=guest, **changes)


def decided(plan: Any, *waiting: int, holding: Any = (), **changes: Any) -> Any:
    ids = (*waiting, *(job.id for job in holding), 30, 31)
    snapshot = cluster_snapshot(
        *map(queued_job, waiting),
        vcs=(LANGUAGE, VISION_MINE),
        holding=holding,
        peer_needs=dict.fromkeys(ids, NEED),
    )
    changed = changes.pop("of", lambda one: {})(snapshot)
    snapshot = replace(snapshot, **changed, **changes)
    return decide(snapshot, make=making(plan)), snapshot
