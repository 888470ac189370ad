"""Places of guests for their run specifications, and orders for the coordinators of devices."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from django.db.models import QuerySet

from scheduling.clusters.models import ClusterRules
from scheduling.core.jobspec.sharing import slowdown_of
from scheduling.core.sharing.peers import PEER_SLOWDOWN
from scheduling.enums import LeaseKind
from scheduling.runs.models import Lease, Member
from scheduling.runs.services.guests import GUEST_GRACE_SECONDS
from tessera.device_sharing import DeviceOrder, GuestOrder, GuestPlace
from tessera.run_spec import make_run_id

MOST_LEAVE_SECONDS: Final = 60.0
"""Longest time that a run specification allows for leaving a device."""


class _Holder(NamedTuple):
    """The sharing settings of a holder."""

    slowdown: float
    drain: bool


def guest_places(members: Iterable[Member]) -> dict[int, list[GuestPlace]]:
    """Return the places of the members that start as guests; the attempts must be loaded."""
    ids = [member.pk for member in members if member.attempt.is_guest]
    found: dict[int, list[GuestPlace]] = defaultdict(list)
    if not ids:
        return found
    rows = _guests().filter(member_id__in=ids).values_list(
        "member_id", "device__index", "slot", "mode", "floor", "most",
        "beside__attempt__uid", "beside__role", "beside__rank", "is_peer",
        "job__spec__grace_seconds", "job__tenant_id", "beside__attempt__job__tenant_id",
    )  # fmt: skip
    for (
        member_id, device, slot, mode, floor, most, uid, role, rank, is_peer, grace, *tenants
    ) in rows:  # fmt: skip
        found[member_id].append(
            GuestPlace(
                device=device,
                holder_run_id=make_run_id(uid, role, rank),
                slot=slot,
                mode=mode,
                floor=floor or 0,
                most=most or 0,
                leave_seconds=_leave_seconds(grace, is_peer=is_peer),
                sees_phase=tenants[0] == tenants[1],
            )
        )
    return found


def _leave_seconds(grace: float, *, is_peer: bool) -> float:
    """Return the time to leave the device of a holder that has ended."""
    return min(max(float(grace), 1.0), MOST_LEAVE_SECONDS) if is_peer else GUEST_GRACE_SECONDS


def device_orders(member_ids: Iterable[int]) -> Mapping[int, Sequence[DeviceOrder]]:
    """Return the guests of the devices of each holder; a device without guests is left out."""
    ids = list(member_ids)
    if not ids:
        return {}
    holders = _holders(ids)
    guests: dict[tuple[int, int], list[GuestOrder]] = defaultdict(list)
    turns: dict[tuple[int, int], float] = {}
    rows = _guests().filter(beside_id__in=ids).order_by("slot").values_list(
        "beside_id", "device__index", "slot", "floor", "most",
        "attempt__uid", "member__role", "member__rank", "is_peer", "turn_seconds",
    )  # fmt: skip
    for holder, device, slot, floor, most, uid, role, rank, is_peer, turn in rows:
        if is_peer:
            turns[holder, device] = turn
        guests[holder, device].append(
            GuestOrder(
                run_id=make_run_id(uid, role, rank), slot=slot, floor=floor or 0, most=most or 0
            )
        )
    orders: dict[int, list[DeviceOrder]] = {pk: [] for pk in ids}
    for (holder, device), those in sorted(guests.items()):
        orders[holder].append(
            DeviceOrder(
                device=device,
                slowdown=PEER_SLOWDOWN if (holder, device) in turns else holders[holder].slowdown,
                guests=those,
                drain=holders[holder].drain,
                turn_seconds=turns.get((holder, device), 0.0),
            )
        )
    return orders


def _guests() -> "QuerySet[Lease, Any]":
    return Lease.objects.filter(released_at=None, kind=LeaseKind.GUEST)


def _holders(ids: Sequence[int]) -> dict[int, _Holder]:
    is_off = not ClusterRules.objects.filter(sharing=True).exists()
    rows = Member.objects.filter(pk__in=ids).values_list(
        "id", "attempt__job__spec__sharing", "attempt__job__sharing_stopped_at"
    )
    return {
        pk: _Holder(
            slowdown=slowdown_of(sharing),
            drain=is_off or stopped_at is not None,
        )
        for pk, sharing, stopped_at in rows
    }
