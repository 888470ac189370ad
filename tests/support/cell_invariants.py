"""Recomputes the books of a cell engine from scratch: gangs, owned cells and health are the input.

This module does not call the code that updates the books; it compares the resulting state.
P-numbers are those of the properties in the documentation of the cells.
"""

from collections import Counter
from typing import Any

from scheduling.core.cells import CellEngine, GroupState
from scheduling.core.cells.gangs import Gang, Roster
from scheduling.core.cells.ledger import ChainLedger


def check(engine: CellEngine) -> None:
    """Raise an AssertionError with the name of the property if the books are inconsistent."""
    for roster in engine.rosters.values():
        _check_users_and_claims(engine, roster)
        _check_ownership(roster.ledger)
        _check_free_list(roster.ledger)
        _check_counters(engine, roster)
        _check_safety(roster.ledger)
        _check_doomed(roster.ledger)
        assert roster.ledger.log is None
        assert not roster.lifted
    _check_gangs(engine)


def snapshot(engine: CellEngine) -> dict[str, Any]:
    """Return all state that decisions depend on, as comparable values."""
    return {
        "gangs": {name: _gang_state(gang) for name, gang in sorted(engine.gangs.items())},
        "bad": (sorted(engine.bad_nodes), sorted(engine.bad_devices)),
        "chains": {name: books(roster.ledger) for name, roster in engine.rosters.items()},
        "users": {
            name: (
                {leaf: gang.name for leaf, gang in sorted(roster.users.items())},
                {leaf: gang.name for leaf, gang in sorted(roster.claims.items())},
                {n: sorted(gangs) for n, gangs in sorted(roster.gangs.items()) if gangs},
            )
            for name, roster in engine.rosters.items()
        },
    }


def books(ledger: ChainLedger) -> dict[str, Any]:
    """Return the state of one chain without its gangs."""
    buddy = ledger.buddy
    return {
        "free": [buddy.free_cells(level) for level in range(1, ledger.topology.levels + 1)],
        "counters": (
            list(buddy.free_count),
            list(buddy.total_left),
            list(buddy.healthy_left),
            list(buddy.claimed),
        ),
        "cells": (list(buddy.state), list(buddy.opportunistic), list(buddy.bad)),
        "masks": (list(ledger.healthy), list(ledger.guaranteed), list(ledger.opportunistic)),
        "owned": {
            cell: (owned.pool, owned.position, owned.used)
            for cell, owned in sorted(ledger.owned.items())
        },
        "doomed": sorted(ledger.doomed),
        "idle": dict(sorted(ledger.idle.items())),
        "pools": [
            (
                pool.vc,
                pool.pinned,
                list(pool.unbound),
                dict(sorted(pool.masks.items())),
                list(pool.used),
                [sorted(keys) for keys in pool.empty],
                dict(sorted(pool.bins.items())),
            )
            for pool in ledger.pools
        ],
    }


def _gang_state(gang: Gang) -> tuple[Any, ...]:
    return (
        gang.state,
        gang.guaranteed,
        gang.lazy_by,
        [(spot.node, spot.mask, spot.item) for spot in gang.spots],
        sorted(gang.victims),
        sorted(gang.preemptors),
        list(gang.virtual) if gang.guaranteed else None,
    )


def _leaves(roster: Roster, gang: Gang) -> list[int]:
    topology = roster.ledger.topology
    found = []
    for spot in gang.spots:
        first = topology.leaf_lo[topology.node_base + spot.node]
        found += [first + i for i in range(spot.mask.bit_length()) if spot.mask >> i & 1]
    return found


def _check_users_and_claims(engine: CellEngine, roster: Roster) -> None:
    """P1: a device has at most one user and at most one claimer, and both know it."""
    users: dict[int, str] = {}
    claims: dict[int, str] = {}
    for gang in engine.gangs.values():
        if gang.roster is not roster:
            continue
        table = claims if gang.state is GroupState.PREEMPTING else users
        for leaf in _leaves(roster, gang):
            assert leaf not in table, f"P1: device {leaf} has {table[leaf]} and {gang.name}"
            table[leaf] = gang.name
    assert users == {leaf: gang.name for leaf, gang in roster.users.items()}, "P1 users"
    assert claims == {leaf: gang.name for leaf, gang in roster.claims.items()}, "P1 claims"


def _check_ownership(ledger: ChainLedger) -> None:
    """P1: the binding is a bijection between owned cells and preassigned cells."""
    topology = ledger.topology
    places = Counter((o.pool, topology.level[c], o.position) for c, o in ledger.owned.items())
    assert all(n == 1 for n in places.values()), "P1: a virtual cell is bound twice"
    covered: set[int] = set()
    for cell in ledger.owned:
        leaves = set(range(topology.leaf_lo[cell], topology.leaf_hi[cell]))
        assert not covered & leaves, "P1: owned cells overlap"
        covered |= leaves
    addresses = [
        ledger.virtual_addresses((leaf,), cell)
        for cell in ledger.owned
        for leaf in range(topology.leaf_lo[cell], topology.leaf_hi[cell])
    ]
    assert len(set(addresses)) == len(addresses), "P1: two devices have one virtual address"
    for number, pool in enumerate(ledger.pools):
        for level in range(1, topology.levels + 1):
            bound = sum(p == number and at == level for p, at, _ in places)
            assert pool.unbound[level] == len(pool.slots[level]) - bound, "P4 unbound"


def _expected_free(ledger: ChainLedger) -> set[int]:
    """Return the maximal complete cells without owned cells inside, above or at them."""
    topology = ledger.topology
    taken = [False] * topology.leaf_count
    for cell in ledger.owned:
        for leaf in range(topology.leaf_lo[cell], topology.leaf_hi[cell]):
            taken[leaf] = True
    free = set()
    for cell in range(len(topology)):
        clean = topology.complete[cell] and not any(
            taken[topology.leaf_lo[cell] : topology.leaf_hi[cell]]
        )
        parent = topology.parent[cell]
        parent_clean = (
            parent >= 0
            and topology.complete[parent]
            and not any(taken[topology.leaf_lo[parent] : topology.leaf_hi[parent]])
        )
        if clean and not parent_clean:
            free.add(cell)
    return free


def _check_free_list(ledger: ChainLedger) -> None:
    """P2, P3: the free list is exactly the maximal free cells; so all merges have happened."""
    topology, buddy = ledger.topology, ledger.buddy
    free = {cell for level in range(1, topology.levels + 1) for cell in buddy.free_cells(level)}
    assert free == _expected_free(ledger), "P2/P3: free list"
    for level in range(1, topology.levels + 1):
        count = sum(topology.level[cell] == level for cell in free)
        assert buddy.free_count[level] == count, "P4 free_count"


def _check_counters(engine: CellEngine, roster: Roster) -> None:
    """P4: every counter equals a count from scratch."""
    ledger, buddy, topology = roster.ledger, roster.ledger.buddy, roster.ledger.topology
    healthy, lent, kept = _device_states(engine, roster)
    for cell in range(len(topology)):
        span = range(topology.leaf_lo[cell], topology.leaf_hi[cell])
        assert buddy.bad[cell] == sum(leaf not in healthy for leaf in span), "P4 bad"
        assert buddy.opportunistic[cell] == sum(leaf in lent for leaf in span), "P4 opportunistic"
    total, good = [0] * (topology.levels + 1), [0] * (topology.levels + 1)
    for root in _expected_free(ledger):
        for cell in range(len(topology)):
            inside = (
                topology.leaf_lo[root] <= topology.leaf_lo[cell]
                and topology.leaf_hi[cell] <= topology.leaf_hi[root]
                and topology.level[cell] <= topology.level[root]
            )
            if inside:
                total[topology.level[cell]] += 1
                good[topology.level[cell]] += buddy.bad[cell] == 0
    assert buddy.total_left == total, "P4 total_left"
    assert buddy.healthy_left == good, "P4 healthy_left"
    for level in range(1, topology.levels + 1):
        claimed = sum(pool.unbound[level] for pool in ledger.pools)
        assert buddy.claimed[level] == claimed, "P4 claimed"
    for cell, owned in ledger.owned.items():
        span = range(topology.leaf_lo[cell], topology.leaf_hi[cell])
        assert owned.used == sum(leaf in kept for leaf in span), "P4 used"
    _check_masks(ledger, healthy, lent, kept)
    _check_bins(ledger)
    _check_homes(ledger)
    _check_ranks(roster)


def _device_states(engine: CellEngine, roster: Roster) -> tuple[set[int], set[int], set[int]]:
    """Return healthy devices, lent devices, and devices that count against quota."""
    topology = roster.ledger.topology
    healthy = {
        leaf
        for leaf in range(topology.leaf_count)
        if (node := topology.node_names[topology.node_of_leaf[leaf]]) not in engine.bad_nodes
        and (node, topology.devices[leaf]) not in engine.bad_devices
    }
    lent = {
        leaf
        for leaf, gang in roster.users.items()
        if not gang.guaranteed and leaf not in roster.claims
    }
    kept = {leaf for leaf, gang in roster.users.items() if gang.guaranteed} | set(roster.claims)
    return healthy, lent, kept


def _check_masks(ledger: ChainLedger, healthy: set[int], lent: set[int], kept: set[int]) -> None:
    topology = ledger.topology
    idle: dict[tuple[int, int], int] = {}
    for node, shape in enumerate(topology.shapes):
        first = topology.leaf_lo[topology.node_base + node]
        for name, mask, leaves in (
            ("healthy", ledger.healthy[node], healthy),
            ("opportunistic", ledger.opportunistic[node], lent),
            ("guaranteed", ledger.guaranteed[node], kept),
        ):
            expected = sum(1 << i for i in range(shape.size) if first + i in leaves)
            assert mask == expected, f"P4 {name} mask of node {node}"
        free = ledger.healthy[node] & ~(ledger.guaranteed[node] | ledger.opportunistic[node])
        key = (ledger.opportunistic[node].bit_count(), free.bit_count())
        idle[key] = idle.get(key, 0) | 1 << node
    assert ledger.idle == idle, "P4 idle buckets"


def _sizes(bins: list[int]) -> int:
    return sum(1 << size for size, there in enumerate(bins) if there)


def _check_homes(ledger: ChainLedger) -> None:
    topology = ledger.topology
    homes = [-1] * len(topology.node_names)
    for cell in ledger.owned:
        if topology.level[cell] >= topology.node_level:
            for node in topology.nodes_of(cell):
                homes[node] = cell
    assert ledger.homes == homes, "P4 homes of nodes"


def _check_ranks(roster: Roster) -> None:
    ranks = {
        number: {name: (gang.request.priority, gang.size) for name, gang in gangs.items()}
        for number, gangs in roster.gangs.items()
    }
    listed = {
        number: {name: rank for rank, names in ranked.items() for name in names}
        for number, ranked in roster.ranks.items()
    }
    assert listed == ranks, "P4 ranks of gangs"


def _check_bins(ledger: ChainLedger) -> None:
    """P4: bins, their sizes and their virtual numbers."""
    topology = ledger.topology
    for number, pool in enumerate(ledger.pools):
        expected: dict[int, int] = {}
        for cell, owned in ledger.owned.items():
            if owned.pool != number:
                continue
            if topology.level[cell] < topology.node_level:
                expected[ledger.first_small + cell] = topology.node_mask(cell)
            else:
                for node in topology.nodes_of(cell):
                    expected[node] = topology.shapes[node].full
        assert pool.masks == expected, "P4 bins of a pool"
        used: dict[int, int] = {}
        for key, mask in expected.items():
            node = ledger.node_of(key)
            free = mask & ledger.healthy[node] & ~ledger.guaranteed[node]
            if mask & ledger.guaranteed[node]:
                used[key] = free.bit_count()
            else:
                assert key in pool.empty[free.bit_count()], "P4 empty bins"
        assert pool.used_sizes == _sizes(pool.used), "P4 sizes of bins in use"
        assert pool.empty_sizes == _sizes([len(keys) for keys in pool.empty]), "P4 empty sizes"
        assert sorted(pool.bins.values()) == sorted(used), "P4 bins in use"
        for at, key in pool.bins.items():
            assert pool.used[used[key]] >> at & 1, "P4 sizes of bins in use"
        assert sum(len(keys) for keys in pool.empty) == len(expected) - len(used), "P4 empty"
        assert sum(bits.bit_count() for bits in pool.used) == len(used), "P4 used"


def _check_safety(ledger: ChainLedger) -> None:
    """P5: in any order of claims of virtual clusters, a cell exists for each quota."""
    buddy, topology = ledger.buddy, ledger.topology
    left = 0
    for level in range(topology.levels, 0, -1):
        fan = topology.fan[level + 1] if level < topology.levels else 0
        left = left * fan + len(buddy.free_cells(level)) - buddy.claimed[level]
        assert left >= 0, f"P5: level {level} of {topology.name} is short by {-left}"
        assert buddy.claimed[level] <= buddy.total_left[level], "P5: claims exceed cells"


def _check_doomed(ledger: ChainLedger) -> None:
    """P10: unavoidable bad cells are bound, and no other unused cell is."""
    buddy, topology = ledger.buddy, ledger.topology
    for level in range(1, topology.levels + 1):
        for pool in ledger.pools:
            assert pool.unbound[level] <= buddy.healthy_left[level], (
                f"P10: {pool.vc} could pick a bad cell at level {level} of {topology.name}"
            )
    for cell, owned in ledger.owned.items():
        if owned.used or ledger.pools[owned.pool].pinned is not None:
            continue
        level = topology.level[cell]
        unbound = ledger.pools[owned.pool].unbound[level]
        assert cell in ledger.doomed, "P10: an unused cell stays bound"
        assert buddy.bad[cell], "P10: a healthy cell is doomed"
        assert unbound >= buddy.healthy_left[level], "P10: a doomed cell could be released"


def _check_gangs(engine: CellEngine) -> None:
    """P8, P9: gangs are complete; victims have strictly lower priority; pools are unchanged."""
    for gang in engine.gangs.values():
        if gang.roster is None:
            continue
        ledger = gang.roster.ledger
        for spot in gang.spots:
            assert spot.mask.bit_count() == spot.item.size, "P8: an instance is not whole"
            if gang.guaranteed:
                owners = {
                    ledger.owned[cell].pool for cell, _ in ledger.holders(spot.node, spot.mask)
                }
                assert gang.pool is not None
                assert owners == {gang.pool.number}, "P1: a gang is outside its quota"
        preempting = gang.state is GroupState.PREEMPTING
        assert bool(gang.victims) <= preempting
        for victim in gang.victims.values():
            assert victim.state is GroupState.BEING_PREEMPTED
            assert gang.name in victim.preemptors
            assert victim.priority < gang.request.priority, "P9: not strictly lower"
            assert not victim.guaranteed or victim.pool is gang.pool, "P9: another VC's guarantee"
        assert (gang.state is GroupState.BEING_PREEMPTED) == bool(gang.preemptors)


def whole(engine: CellEngine, group: str) -> bool:
    """P8: every instance of a gang has a placement of its size."""
    gang = engine.gangs[group]
    wanted = Counter({member: m.count for member, m in enumerate(gang.request.members) if m.count})
    return Counter(spot.item.member for spot in gang.spots) == wanted
