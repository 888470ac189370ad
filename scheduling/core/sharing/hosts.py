"""Rules of holders and guests: valid leases of one device, and hosts for a guest.

A device has one holder in slot 0 and up to 3 guests in slots 1 to 3. A guest binds no cell and is
charged nothing, so these rules never concern guaranteed jobs or the cell engine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from scheduling.core.sharing.pairs import Paces
from tessera.isolation import CONTAINER, NAMESPACE, USER

MOST_GUESTS: Final = 3
STEADY_SECONDS: Final = 60.0
STEADY_STEPS: Final = 50


class Consent(StrEnum):
    """Guests that a holder allows on its devices."""

    NONE = "none"
    SAME_TENANT = "same-tenant"
    ANY = "any"

    @classmethod
    def strictest(cls, *limits: str) -> Consent:
        """Return the limit that allows the fewest guests; the holder, node and device set one."""
        return min(map(cls, limits), key=tuple(cls).index)


class SharingMode(StrEnum):
    """How memory and compute of jobs on one device are limited, as probed on the node."""

    EXCLUSIVE = "exclusive"
    MIG = "mig"  # each instance is a separate device: complete leaves, no guests
    MPS = "mps"
    LIMITED = "limited"
    COOPERATIVE = "cooperative"
    TIME_SLICE = "time-slice"
    SLOT = "slot"


class LimitStrength(NamedTuple):
    """How the limits of a guest hold in a sharing mode: ``enforced``, ``cooperative`` or ``none``.

    ``enforced`` limits hold against any program, ``cooperative`` ones need the in-job library.
    """

    memory: str
    compute: str


LIMITS: Final[Mapping[SharingMode, LimitStrength]] = {
    SharingMode.EXCLUSIVE: LimitStrength("enforced", "enforced"),
    SharingMode.MIG: LimitStrength("enforced", "enforced"),
    # The thread percentage of MPS is fixed when a process starts; bounds below need the library.
    SharingMode.MPS: LimitStrength("enforced", "cooperative"),
    SharingMode.LIMITED: LimitStrength("enforced", "cooperative"),
    SharingMode.COOPERATIVE: LimitStrength("cooperative", "cooperative"),
    SharingMode.TIME_SLICE: LimitStrength("none", "enforced"),
    SharingMode.SLOT: LimitStrength("enforced", "enforced"),
}


class SharedLeaseKind(StrEnum):
    """Kind of a lease of a device."""

    USING = "using"
    GUEST = "guest"


class LeaseViolation(StrEnum):
    """A rule that the leases of a device break."""

    GUEST_IS_GUARANTEED = "lease_guest_is_opportunistic"
    SLOT_OUT_OF_RANGE = "lease_guest_slot_is_in_range"
    SLOT_TAKEN = "lease_one_live_per_slot"
    WITHOUT_HOLDER = "guest-without-holder"
    AGAINST_CONSENT = "guest-against-consent"


class Refusal(StrEnum):
    """Reason why a device cannot be the host of a guest."""

    TYPE = "type"
    MODE = "mode"
    CONSENT = "consent"
    TENANT = "tenant"
    EXCLUDED = "excluded"
    FULL = "full"
    UNSTEADY = "unsteady"
    ACCOUNT = "account"
    MEMORY = "memory"
    NODE = "node"


_WITHOUT_GUESTS: Final = frozenset({SharingMode.EXCLUSIVE, SharingMode.MIG})
# An MPS server does not clear device memory between its clients.
_WITHIN_A_TENANT: Final = frozenset({SharingMode.MPS})
_APART: Final = frozenset({CONTAINER, USER, NAMESPACE})


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLease:
    """A live lease of a device.

    Attributes:
        job: ID of the job.
        tenant: ID of the job's tenant.
        kind: whether the job is the holder or a guest.
        slot: 0 for the holder, 1 to 3 for guests.
        guaranteed: whether the job is guaranteed.
        leaving: whether the job has its notice to leave.
    """

    job: int
    tenant: int
    kind: SharedLeaseKind
    slot: int
    guaranteed: bool
    leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A device with a holder that may admit guests.

    Attributes:
        address: address of the device.
        node: name of its node.
        index: number of the device on the node.
        holder: ID of the holder's job.
        type: device type.
        mode: sharing mode of the device.
        isolation: isolation level of its node.
        tenant: ID of the holder's tenant.
        consent: guests that the holder allows.
        slots: taken slots of guests, also of those that leave.
        most_guests: maximum number of guests that the virtual cluster allows on a device.
        memory_free: bytes available to another guest.
        steady_seconds: time for which the holder has reported steps.
        steps: steps that it has reported.
        account_empty: whether the holder's delay account is empty.
        excluded: applications that may not be guests here.
        pace: expected pace of the guest on this device, as a fraction of its pace alone.
        seconds_left: expected time that the holder still runs.
        paces: paces with guests of an application, if they were measured on this type.
    """

    address: str
    type: str
    mode: SharingMode
    isolation: str
    tenant: int
    consent: Consent
    slots: tuple[int, ...]
    most_guests: int
    memory_free: int
    steady_seconds: float
    steps: int
    account_empty: bool
    pace: float
    seconds_left: float
    excluded: frozenset[str] = frozenset()
    node: str = ""
    index: int = 0
    holder: int = 0
    paces: Mapping[str, Paces] = field(default_factory=dict)

    def pace_of(self, application: str) -> float:
        """Return the expected pace of a guest of an application: measured, or that of all."""
        measured = self.paces.get(application)
        return self.pace if measured is None else measured.guest

    @property
    def free_slot(self) -> int:
        """The lowest slot that is not taken."""
        return next(slot for slot in range(1, MOST_GUESTS + 2) if slot not in self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestNeed:
    """Device memory of a waiting job that may be a guest, in bytes.

    Attributes:
        floor: minimum memory with which it can work.
        wants: memory that it would use.
        application: name by which its pairs are measured; empty if unknown.
    """

    floor: int
    wants: int
    application: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestRequest:
    """Requirements of an opportunistic job as a guest.

    Attributes:
        tenant: ID of the job's tenant.
        application: name by which pairs are measured and excluded.
        types: device types that it can use; empty for all.
        floor: minimum device memory in bytes, positive.
        wants: bytes that it would use, at least ``floor``.
    """

    tenant: int
    application: str
    types: Collection[str]
    floor: int
    wants: int

    def __post_init__(self) -> None:
        """Reject impossible sizes.

        Raises:
            ValueError: the floor is not positive, or above ``wants``.
        """
        if not 0 < self.floor <= self.wants:
            raise ValueError(f"memory {self.floor} must be positive and at most {self.wants}")


def violations(leases: Sequence[SharedLease], consent: Consent) -> tuple[LeaseViolation, ...]:
    """Return the rules that the live leases of one device break, in a fixed order."""
    holder = next((lease for lease in leases if lease.kind is SharedLeaseKind.USING), None)
    guests = [lease for lease in leases if lease.kind is SharedLeaseKind.GUEST]
    slots = [(lease.kind, lease.slot) for lease in leases]
    broken = {
        LeaseViolation.GUEST_IS_GUARANTEED: any(guest.guaranteed for guest in guests),
        LeaseViolation.SLOT_OUT_OF_RANGE: any(
            not 1 <= guest.slot <= MOST_GUESTS for guest in guests
        ),
        LeaseViolation.SLOT_TAKEN: len(set(slots)) < len(slots),
        LeaseViolation.WITHOUT_HOLDER: holder is None
        and not all(guest.leaving for guest in guests),
        LeaseViolation.AGAINST_CONSENT: holder is not None
        and not all(g.leaving or consents(consent, holder.tenant, g.tenant) for g in guests),
    }
    return tuple(rule for rule, is_broken in broken.items() if is_broken)


def consents(consent: Consent, holder_tenant: int, guest_tenant: int) -> bool:
    """Return whether a holder allows guests of a tenant."""
    if consent is Consent.SAME_TENANT:
        return holder_tenant == guest_tenant
    return consent is Consent.ANY


def may_share(host: Host, tenant: int) -> bool:
    """Return whether a guest of a tenant may be on a device now, apart from its load."""
    return (
        host.mode not in _WITHOUT_GUESTS
        and consents(host.consent, host.tenant, tenant)
        and (host.tenant == tenant or may_meet(host.isolation, host.mode))
    )


def refusal(guest: GuestRequest, host: Host) -> Refusal | None:
    """Return the first rule by which a device cannot be the guest's host, or None."""
    return refusal_by_rules(guest, host) or refusal_now(host, guest.floor)


def refusal_by_rules(guest: GuestRequest, host: Host) -> Refusal | None:
    """Return the first rule by which a device admits no guest like this one at any time."""
    found: Refusal | None = None
    if guest.types and host.type not in guest.types:
        found = Refusal.TYPE
    elif host.mode in _WITHOUT_GUESTS:
        found = Refusal.MODE
    elif not consents(host.consent, host.tenant, guest.tenant):
        found = Refusal.CONSENT
    elif guest.tenant != host.tenant and not may_meet(host.isolation, host.mode):
        found = Refusal.TENANT
    elif guest.application in host.excluded:
        found = Refusal.EXCLUDED
    return found


def refusal_now(host: Host, floor: int) -> Refusal | None:
    """Return the first reason for which a device admits no guest of ``floor`` bytes now."""
    found: Refusal | None = None
    if len(host.slots) >= min(host.most_guests, MOST_GUESTS):
        found = Refusal.FULL
    elif host.steady_seconds < STEADY_SECONDS or host.steps < STEADY_STEPS:
        found = Refusal.UNSTEADY
    elif host.account_empty:
        found = Refusal.ACCOUNT
    elif host.memory_free < floor:
        found = Refusal.MEMORY
    return found


def may_meet(isolation: str, mode: SharingMode) -> bool:
    """Return whether jobs of two tenants may use a device concurrently.

    Args:
        isolation: isolation level of the node.
        mode: sharing mode of the device.
    """
    return isolation in _APART and mode not in _WITHIN_A_TENANT


def rank(guest: GuestRequest, host: Host) -> tuple[float, int, float, str]:
    """Return the sort key of a possible host: the best one is the lowest.

    The highest expected pace is best; it is reduced if memory is short. Ties are decided by fewer
    guests, then by the time that the holder still runs, then by address.
    """
    score = host.pace_of(guest.application) * min(1.0, host.memory_free / guest.wants)
    return -score, len(host.slots), -host.seconds_left, host.address


def rank_with_memory(host: Host) -> tuple[float, int, float, str]:
    """Return the rank of a host for the best guest with enough memory there: no rank is better."""
    best = host.pace
    if host.paces:
        best = max(best, *(one.guest for one in host.paces.values()))
    return -best, len(host.slots), -host.seconds_left, host.address
