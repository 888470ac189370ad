"""Search for the best host of each guest of a round, without a pass over all hosts for each one.

A round has thousands of hosts, and its waiting guests have tens of different requests. The rules
about type, mode, consent and tenants depend on few fields of a host, so they are checked once for
each combination (``_Kind``). The rank of a host for a request is never better than its rank with
enough memory, so one order of all hosts is enough: a request ranks hosts in that order until none
of the others can be better.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final, NamedTuple

from scheduling.core.sharing.hosts import (
    MOST_GUESTS,
    GuestRequest,
    Host,
    Refusal,
    rank,
    rank_with_memory,
    refusal_by_rules,
    refusal_now,
)

_CLOSED: Final = 16
"""Number of newly closed hosts after which new requests of a group get a list without them."""
_FIRST: Final = 256
"""Number of first seats of a list that are checked then: guests close the best seats first."""

Rank = tuple[float, int, float, str]


class _Kind(NamedTuple):
    """Fields of a host that decide about all requests alike; ``owner`` is () without tenancy."""

    type: str
    mode: str
    isolation: str
    consent: str
    tenant: int
    excluded: frozenset[str]
    owner: tuple[int | None, ...]


class _Seat(NamedTuple):
    """A host that admits guests, with its rank for a request that has enough memory there."""

    best: Rank
    host: Host
    kind: _Kind


@dataclass(slots=True)
class _Search:
    """Ranked hosts of one request; ``next`` is the first of its seats without a rank."""

    seats: list[_Seat]
    next: int = 0
    heap: list[tuple[Rank, Host]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Group:
    """Requests that differ only in memory.

    Attributes:
        request: one of them.
        nodes: usable nodes; None for all.
        refused: kinds of hosts that admit none of them, with the rule.
        seats: the other hosts that admit guests, best first.
        created: number of hosts that were closed before.
        compacted: number of closed hosts when they were last removed from the first ``seats``.
    """

    request: GuestRequest
    nodes: Collection[str] | None
    refused: Mapping[_Kind, Refusal]
    seats: list[_Seat]
    created: int
    compacted: int


class Seats:
    """Hosts of a round with the guests that the round has placed so far.

    Args:
        hosts: the hosts of the snapshot; their addresses differ.
        owners: owners of the nodes whose jobs must be of one tenant.
        unusable: addresses of hosts that get no guests, whatever their rules.
    """

    def __init__(
        self,
        hosts: Iterable[Host],
        owners: Mapping[str, int | None],
        unusable: Collection[str] = (),
    ) -> None:
        self._alike: dict[_Kind, list[Host]] = {}
        self._refused: dict[_Kind, Counter[Refusal]] = defaultdict(Counter)
        self._seats: list[_Seat] = []
        self._changed: dict[str, Host] = {}
        self._closed: dict[str, tuple[int, Refusal]] = {}
        self._searches: dict[Hashable, _Search] = {}
        for host in hosts:
            node = host.node
            kind = _Kind(
                host.type, host.mode, host.isolation, host.consent, host.tenant, host.excluded,
                (owners[node],) if node in owners else (),
            )  # fmt: skip
            alike = self._alike.get(kind)
            if alike is None:
                self._alike[kind] = [host]
            else:
                alike.append(host)
            closed = Refusal.NODE if host.address in unusable else refusal_now(host, 1)
            if closed is None:
                self._seats.append(_Seat(rank_with_memory(host), host, kind))
            else:
                self._refused[kind][closed] += 1
        self._seats.sort(key=itemgetter(0))

    def group(self, request: GuestRequest, nodes: Collection[str] | None) -> Group:
        """Return the group of a request; ``nodes`` are usable, None for all."""
        refused = {}
        for kind, alike in self._alike.items():
            found = refusal_by_rules(request, alike[0])
            if found is not None:
                refused[kind] = found
        return Group(
            request=request,
            nodes=nodes,
            refused=refused,
            seats=[
                seat
                for seat in self._seats
                if seat.kind not in refused
                and (nodes is None or seat.host.node in nodes)
                and _may_enter(request, seat.kind)
            ],
            created=len(self._closed),
            compacted=0,
        )

    def best(self, key: Hashable, request: GuestRequest, group: Group) -> Host | None:
        """Return the best host for a request of a group, or None.

        Args:
            key: equal for equal requests of equal groups.
            request: the request.
            group: its group.
        """
        search = self._searches.get(key)
        if search is None:
            search = self._searches[key] = _Search(self._open(group))
        heap, seats, closed, floor = search.heap, search.seats, self._closed, request.floor
        self._rank_again(heap, request)
        for place in range(search.next, len(seats)):
            best, host, _ = seats[place]
            if heap and heap[0][0] < best:
                search.next = place
                return heap[0][1]
            if host.memory_free < floor or host.address in closed:
                continue  # guests of this round never free memory
            now = self._changed.get(host.address, host)
            if now is host and host.memory_free >= request.wants and not host.paces:
                heapq.heappush(heap, (best, host))
            elif now.memory_free >= floor:
                heapq.heappush(heap, (rank(request, now), now))
        search.next = len(seats)
        return heap[0][1] if heap else None

    def _open(self, group: Group) -> list[_Seat]:
        """Return the seats of a group, mostly without those that were closed meanwhile."""
        if len(self._closed) >= group.compacted + _CLOSED:
            first, others = group.seats[:_FIRST], group.seats[_FIRST:]
            group.seats = [s for s in first if s.host.address not in self._closed] + others
            group.compacted = len(self._closed)
        return group.seats

    def _rank_again(self, heap: list[tuple[Rank, Host]], request: GuestRequest) -> None:
        """Rank the first host again until it has the guests for which it was ranked."""
        while heap:
            _, host = heap[0]
            now = self._changed.get(host.address, host)
            if host.address in self._closed or now.memory_free < request.floor:
                heapq.heappop(heap)
            elif now is host:
                return
            else:
                heapq.heapreplace(heap, (rank(request, now), now))

    def take(self, host: Host, memory: int) -> None:
        """Place a guest with some bytes of memory on a host as it is now."""
        if len(host.slots) + 1 >= min(host.most_guests, MOST_GUESTS):
            self._closed[host.address] = (len(self._closed), Refusal.FULL)
            return
        now = self._changed[host.address] = replace(
            host,
            slots=tuple(sorted((*host.slots, host.free_slot))),
            memory_free=host.memory_free - memory,
        )
        closed = refusal_now(now, 1)
        if closed is not None:
            self._closed[host.address] = (len(self._closed), closed)

    def refusals(self, group: Group) -> Counter[Refusal]:
        """Count the hosts by the reason for which they admit no request of a group.

        Hosts that admit guests have too little memory, since the search has found none.
        """
        counts: Counter[Refusal] = Counter()
        for kind, alike in self._alike.items():
            found = group.refused.get(kind)
            if found is None:
                counts.update(self._refused[kind])
            else:
                counts[found] += len(alike)
        for seat in self._seats:
            if seat.kind not in group.refused:
                counts[self._refusal(seat, group)] += 1
        return counts

    def _refusal(self, seat: _Seat, group: Group) -> Refusal:
        order, closed = self._closed.get(seat.host.address, (group.created, Refusal.MEMORY))
        if order < group.created:
            return closed
        if group.nodes is not None and seat.host.node not in group.nodes:
            return Refusal.NODE
        return closed if _may_enter(group.request, seat.kind) else Refusal.TENANT


def _may_enter(request: GuestRequest, kind: _Kind) -> bool:
    """Return whether a guest may run on the node of a host.

    On a node with an owner all jobs must be of one tenant, and a guest must not set the tenancy.
    """
    return not kind.owner or kind.owner[0] == request.tenant
