"""Rules of holders and guests: leases, hosts and promotion."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.sharing.hosts import (
    Consent,
    GuestRequest,
    Host,
    LeaseViolation,
    Refusal,
    SharedLease,
    SharedLeaseKind,
    SharingMode,
    consents,
    rank,
    refusal,
    violations,
)

HOLDER = SharedLease(job=1, tenant=1, kind=SharedLeaseKind.USING, slot=0, guaranteed=True)
GUEST = SharedLease(job=2, tenant=1, kind=SharedLeaseKind.GUEST, slot=1, guaranteed=False)
HOST = Host(
    address="n0/0",
    type="a100",
    mode=SharingMode.COOPERATIVE,
    isolation="user",
    tenant=1,
    consent=Consent.ANY,
    slots=(),
    most_guests=1,
    memory_free=8,
    steady_seconds=60,
    steps=50,
    account_empty=False,
    pace=0.4,
    seconds_left=100,
)
REQUEST = GuestRequest(tenant=1, application="x", types=("a100",), floor=4, wants=8)
HOSTS = st.builds(
    Host,
    address=st.sampled_from(["n0/0", "n0/1", "n1/0"]),
    type=st.sampled_from(["a100", "v100"]),
    mode=st.sampled_from(SharingMode),
    isolation=st.sampled_from(["container", "user", "namespace", "none"]),
    tenant=st.sampled_from([1, 2]),
    consent=st.sampled_from(Consent),
    slots=st.integers(0, 3).map(lambda n: tuple(range(1, n + 1))),
    most_guests=st.integers(0, 5),
    memory_free=st.integers(0, 9),
    steady_seconds=st.sampled_from([59.0, 60.0]),
    steps=st.sampled_from([49, 50]),
    account_empty=st.booleans(),
    pace=st.sampled_from([0.1, 0.4]),
    seconds_left=st.sampled_from([1.0, 2.0]),
    excluded=st.sampled_from([frozenset(), frozenset({"x"})]),
)


@pytest.mark.parametrize(
    ("leases", "consent", "broken"),
    [
        ((HOLDER, GUEST), Consent.SAME_TENANT, ()),
        ((HOLDER, replace(GUEST, guaranteed=True)), Consent.ANY, "GUEST_IS_GUARANTEED"),
        ((HOLDER, replace(GUEST, slot=0)), Consent.ANY, "SLOT_OUT_OF_RANGE"),
        ((HOLDER, replace(GUEST, slot=4)), Consent.ANY, "SLOT_OUT_OF_RANGE"),
        ((HOLDER, GUEST, replace(GUEST, job=3)), Consent.ANY, "SLOT_TAKEN"),
        ((HOLDER, replace(HOLDER, job=3)), Consent.ANY, "SLOT_TAKEN"),
        ((GUEST,), Consent.ANY, "WITHOUT_HOLDER"),
        ((replace(GUEST, leaving=True),), Consent.ANY, ()),
        ((HOLDER, GUEST), Consent.NONE, "AGAINST_CONSENT"),
        ((HOLDER, replace(GUEST, tenant=2)), Consent.SAME_TENANT, "AGAINST_CONSENT"),
        ((HOLDER, replace(GUEST, leaving=True)), Consent.NONE, ()),
        ((HOLDER, replace(GUEST, tenant=2)), Consent.ANY, ()),
        ((), Consent.NONE, ()),
    ],
)
def test_leases_of_a_device_break_named_rules(leases, consent, broken) -> None:
    assert violations(leases, consent) == ((LeaseViolation[broken],) if broken else ())


def test_three_guests_have_slots_of_their_own() -> None:
    guests = [replace(GUEST, job=slot, slot=slot) for slot in (1, 2, 3)]

    assert violations([HOLDER, *guests], Consent.ANY) == ()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, None),
        ({"type": "v100"}, Refusal.TYPE),
        ({"mode": SharingMode.EXCLUSIVE}, Refusal.MODE),
        ({"mode": SharingMode.MIG}, Refusal.MODE),
        ({"consent": Consent.NONE}, Refusal.CONSENT),
        ({"tenant": 2, "consent": Consent.SAME_TENANT}, Refusal.CONSENT),
        ({"tenant": 2, "isolation": "none"}, Refusal.TENANT),
        ({"tenant": 2, "mode": SharingMode.MPS}, Refusal.TENANT),
        ({"tenant": 2}, None),
        ({"isolation": "none", "mode": SharingMode.MPS}, None),
        ({"excluded": frozenset({"x"})}, Refusal.EXCLUDED),
        ({"slots": (1,)}, Refusal.FULL),
        ({"slots": (1, 2, 3), "most_guests": 9}, Refusal.FULL),
        ({"steady_seconds": 59.0}, Refusal.UNSTEADY),
        ({"steps": 49}, Refusal.UNSTEADY),
        ({"account_empty": True}, Refusal.ACCOUNT),
        ({"memory_free": 3}, Refusal.MEMORY),
    ],
)
def test_a_host_refuses_a_guest_by_the_first_rule(change, expected) -> None:
    assert refusal(REQUEST, replace(HOST, **change)) is expected


@given(host=HOSTS)
def test_tenants_meet_only_with_consent_isolation_and_a_mode_that_keeps_them_apart(host) -> None:
    if refusal(REQUEST, host) is None and host.tenant != REQUEST.tenant:
        assert host.consent is Consent.ANY
        assert host.isolation in {"container", "user", "namespace"}
        assert host.mode not in {SharingMode.MPS, SharingMode.EXCLUSIVE, SharingMode.MIG}


def test_a_host_with_short_memory_ranks_lower() -> None:
    fast_and_full = replace(HOST, address="n1/0", pace=0.6, memory_free=4)

    assert rank(REQUEST, HOST) < rank(REQUEST, fast_and_full)


@pytest.mark.parametrize(
    "worse",
    [{"slots": (1,)}, {"seconds_left": 99.0}, {"address": "n0/1"}],
    ids=lambda w: next(iter(w)),
)
def test_ties_are_decided_by_guests_then_time_left_then_address(worse) -> None:
    host = replace(HOST, most_guests=3)

    assert rank(REQUEST, host) < rank(REQUEST, replace(host, **worse))


def test_consent_is_by_tenant() -> None:
    assert [consents(c, 1, 1) for c in Consent] == [False, True, True]
    assert [consents(c, 1, 2) for c in Consent] == [False, False, True]


def test_a_floor_above_the_wanted_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 8"):
        replace(REQUEST, floor=9)
