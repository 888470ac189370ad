"""The search for hosts of guests equals a pass over all hosts for each guest."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.sharing.hosts import (
    Consent,
    GuestRequest,
    Host,
    Refusal,
    SharingMode,
    rank,
    refusal,
)
from scheduling.core.sharing.pairs import Paces
from scheduling.core.sharing.seats import Group, Seats

NODES = ("n0", "n1", "n2")
OWNERS = st.dictionaries(st.sampled_from(NODES), st.sampled_from([None, 1, 2]))


@st.composite
def hosts(draw: st.DrawFn) -> tuple[Host, ...]:
    """Devices of three nodes; most of them admit guests."""
    return tuple(
        Host(
            address=f"{node}/{index}",
            node=node,
            index=index,
            holder=1 + index,
            type=draw(st.sampled_from(["a", "a", "b"])),
            mode=draw(st.sampled_from([SharingMode.COOPERATIVE, SharingMode.MPS])),
            isolation=draw(st.sampled_from(["user", "none"])),
            tenant=draw(st.sampled_from([1, 2])),
            consent=draw(st.sampled_from([Consent.ANY, Consent.ANY, Consent.SAME_TENANT])),
            slots=draw(st.sampled_from([(), (), (1,), (2,)])),
            most_guests=draw(st.integers(1, 3)),
            memory_free=draw(st.integers(0, 12)),
            steady_seconds=60.0,
            steps=draw(st.sampled_from([50, 50, 50, 49])),
            account_empty=draw(st.integers(0, 5)) == 0,
            pace=draw(st.sampled_from([0.0, 0.1, 0.4, 0.8])),
            seconds_left=draw(st.sampled_from([1.0, 2.0])),
            excluded=draw(st.sampled_from([frozenset(), frozenset({"x"})])),
            paces=draw(st.sampled_from([{}, {}, {"y": Paces(0.9, 0.6)}, {"y": Paces(0.9, 0.0)}])),
        )
        for node in draw(st.sets(st.sampled_from(NODES), min_size=1))
        for index in range(draw(st.integers(1, 4)))
    )


@st.composite
def requests(draw: st.DrawFn) -> tuple[GuestRequest, frozenset[str] | None]:
    floor = draw(st.integers(1, 6))
    request = GuestRequest(
        tenant=draw(st.sampled_from([1, 2])),
        application=draw(st.sampled_from(["x", "y"])),
        types=draw(st.sampled_from([(), ("a",)])),
        floor=floor,
        wants=floor + draw(st.integers(0, 6)),
    )
    return request, draw(st.sampled_from([None, None, frozenset({"n0"}), frozenset(NODES)]))


def refused(
    request: GuestRequest,
    host: Host,
    nodes: frozenset[str] | None,
    owners: dict[str, int | None],
) -> Refusal | None:
    """Every rule, for one host."""
    found = refusal(request, host)
    if found is None and nodes is not None and host.node not in nodes:
        found = Refusal.NODE
    if found is None and host.node in owners and owners[host.node] != request.tenant:
        found = Refusal.TENANT
    return found


@given(hosts=hosts(), owners=OWNERS, asked=st.lists(requests(), min_size=1, max_size=20))
def test_each_guest_gets_the_best_of_all_hosts_that_admit_it(hosts, owners, asked) -> None:
    seats, now = Seats(hosts, owners), {host.address: host for host in hosts}
    groups: dict[object, Group] = {}
    for request, nodes in asked:
        alike = request.tenant, request.application, request.types, nodes
        if alike not in groups:
            groups[alike] = seats.group(request, nodes)
        possible = [h for h in now.values() if refused(request, h, nodes, owners) is None]

        found = seats.best((alike, request.floor, request.wants), request, groups[alike])

        assert found == min(possible, key=lambda host: rank(request, host), default=None)
        if found is None:
            continue
        most = min(request.wants, found.memory_free)
        seats.take(found, most)
        now[found.address] = replace(
            found,
            slots=tuple(sorted((*found.slots, found.free_slot))),
            memory_free=found.memory_free - most,
        )


@given(hosts=hosts(), owners=OWNERS, asked=requests())
def test_hosts_without_enough_memory_are_counted_by_their_first_rule(hosts, owners, asked) -> None:
    request, nodes = asked
    seats = Seats(hosts, owners)
    huge = replace(request, floor=100, wants=100)

    counts = seats.refusals(seats.group(huge, nodes))

    floor = replace(request, floor=1, wants=1)
    first = (refused(floor, host, nodes, owners) for host in hosts)
    assert counts == Counter(found or Refusal.MEMORY for found in first)


HOST = Host(
    address="n0/0", node="n0", type="a", mode=SharingMode.COOPERATIVE, isolation="user",
    tenant=1, consent=Consent.ANY, slots=(), most_guests=1, memory_free=8,
    steady_seconds=60.0, steps=50, account_empty=False, pace=0.4, seconds_left=1.0,
)  # fmt: skip


def test_a_pace_measured_with_others_does_not_make_a_host_the_best() -> None:
    other = replace(HOST, address="n0/1", pace=0.1, paces={"y": Paces(0.9, 0.8)})
    seats = Seats([other, HOST], {})
    asked = {name: GuestRequest(tenant=1, application=name, types=(), floor=4, wants=4)
             for name in ("x", "y")}  # fmt: skip
    groups = {name: seats.group(request, None) for name, request in asked.items()}

    assert seats.best("x", asked["x"], groups["x"]) is HOST
    assert seats.best("y", asked["y"], groups["y"]) is other


def test_hundreds_of_guests_fill_the_hosts_in_the_order_of_their_rank() -> None:
    hosts = [replace(HOST, address=f"n0/{n:03}", pace=n / 1000) for n in range(600)]
    seats, found = Seats(hosts, {}), []
    group = seats.group(GuestRequest(tenant=1, application="", types=(), floor=1, wants=1), None)
    for wants in range(1, 601):
        request = GuestRequest(tenant=1, application="", types=(), floor=1, wants=1 + wants % 8)
        host = seats.best(wants, request, group)
        assert host is not None
        seats.take(host, 1)
        found.append(host.address)

    assert found == [host.address for host in reversed(hosts)]
    assert seats.best(0, request, group) is None
    assert seats.refusals(group) == {Refusal.FULL: 600}


def test_a_host_that_fills_up_is_counted_as_full() -> None:
    host = HOST
    request = GuestRequest(tenant=1, application="", types=(), floor=4, wants=4)
    seats = Seats([host], {})
    before = seats.group(request, frozenset())
    seats.take(host, 4)
    after = seats.group(request, frozenset())

    assert seats.refusals(before) == {Refusal.NODE: 1}
    assert seats.refusals(after) == {Refusal.FULL: 1}
