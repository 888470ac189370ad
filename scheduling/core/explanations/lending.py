"""Devices that virtual clusters use, lend and lack, counted by chain.

Guarantees are not bound to cells before jobs start, so lent and unhealthy devices are counted by
chain. Of the devices that all guarantees could still claim, a missing device is unhealthy if it is
faulty, cordoned if its node is, and lent if an opportunistic job uses it. Each number is divided
among the virtual clusters in proportion to their unclaimed devices.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from scheduling.core.cells import CellEngine
from scheduling.core.cells.topology import ClusterTopology
from scheduling.core.round.engine_setup import guaranteed_by_chain
from scheduling.core.round_result import RoundResult
from scheduling.core.values import ClusterSnapshot, HeldLeaf


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainUse:
    """The use of one chain at one time, in devices.

    Attributes:
        guaranteed: guaranteed devices by virtual cluster ID.
        used: guaranteed devices in use by virtual cluster ID.
        borrowed: devices held outside any guarantee.
        out: free but unusable devices: unhealthy, or on a node that is down.
        cordoned: healthy free devices on nodes that an admin has cordoned or drains.
        total: number of all devices.
    """

    guaranteed: Mapping[int, int]
    used: Mapping[int, int]
    borrowed: int
    out: int
    cordoned: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Guaranteed devices that a virtual cluster could not claim now."""

    lent: int = 0
    unhealthy: int = 0
    cordoned: int = 0


def missing(use: ChainUse) -> Mapping[int, Missing]:
    """Return the unhealthy, cordoned and lent devices of each guarantee, in that order."""
    unclaimed = {
        vc: max(promised - use.used.get(vc, 0), 0) for vc, promised in use.guaranteed.items()
    }
    claims = sum(unclaimed.values())
    spare = use.total - sum(use.used.values()) - claims
    taken = 0
    left = dict(unclaimed)
    parts: list[dict[int, int]] = []
    for devices in (use.out, use.cordoned, use.borrowed):
        before, taken = taken, taken + devices
        gone = [min(max(total - max(spare, 0), 0), claims) for total in (before, taken)]
        parts.append(spread(gone[1] - gone[0], left))
        left = {vc: left[vc] - parts[-1][vc] for vc in left}
    unhealthy, cordoned, lent = parts
    return {
        vc: Missing(lent=lent[vc], unhealthy=unhealthy[vc], cordoned=cordoned[vc])
        for vc in unclaimed
    }


def spread(amount: int, weights: Mapping[int, int]) -> dict[int, int]:
    """Divide ``amount`` into whole parts by weight.

    No part exceeds its weight. The parts with the largest remainders are rounded up.
    """
    total = sum(weights.values())
    if total == 0:
        return dict.fromkeys(weights, 0)
    parts = {key: amount * weight // total for key, weight in weights.items()}
    rest = amount - sum(parts.values())
    by_remainder = sorted(weights, key=lambda key: (-(amount * weights[key] % total), key))
    for key in by_remainder[:rest]:
        parts[key] += 1
    return parts


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """The devices of one job by leaf."""

    vc: int
    tenant: int
    leaves: tuple[HeldLeaf, ...]

    @property
    def borrowed(self) -> int:
        return sum(not leaf.virtual for leaf in self.leaves)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """The guarantee of one virtual cluster, and the devices that it could not claim."""

    guaranteed: int = 0
    lent: int = 0
    unusable: int = 0


@dataclass(slots=True)
class ChainDevices:
    """The devices of one chain; ``used`` are guaranteed ones by virtual cluster."""

    used: Counter[int]
    total: int
    borrowed: int = 0
    idle: int = 0
    out: int = 0
    cordoned: int = 0


def held_devices(
    snapshot: ClusterSnapshot, result: RoundResult | None, gone: Collection[int]
) -> dict[int, HeldDevices]:
    """Return the devices of each job after the round."""
    found = {
        job.id: HeldDevices(
            job.vc, job.tenant, tuple(leaf for member in job.members for leaf in member)
        )
        for job in snapshot.holding
        if job.id not in gone
    }
    if result is None:
        return found
    for rebinding in result.rebindings:
        if rebinding.job_id in found:
            held, moved = found[rebinding.job_id], {one.address: one for one in rebinding.leaves}
            leaves = tuple(moved.get(leaf.address, leaf) for leaf in held.leaves)
            found[rebinding.job_id] = HeldDevices(held.vc, held.tenant, leaves)
    queued = {job.id: job for job in snapshot.queued}
    for start in result.starts:
        job = queued[start.job_id]
        if job.id not in gone:
            leaves = tuple(leaf for member in start.members for leaf in member.leaves)
            found[job.id] = HeldDevices(job.vc, job.tenant, leaves)
    return found


def devices_by_chain(
    snapshot: ClusterSnapshot, topology: ClusterTopology, held: Mapping[int, HeldDevices]
) -> dict[str, ChainDevices]:
    chains = {
        name: ChainDevices(used=Counter(), total=chain.leaf_count)
        for name, chain in topology.chains.items()
    }
    taken: set[str] = set()
    for one in held.values():
        for leaf in one.leaves:
            place = topology.leaves.get(leaf.address)
            if place is None:
                continue  # the device left the cluster while the job holds it
            taken.add(leaf.address)
            if leaf.virtual:
                chains[place[0]].used[one.vc] += 1
            else:
                chains[place[0]].borrowed += 1
    nodes = {node.name: node for node in snapshot.nodes}
    for (name, index), (chain_name, number) in topology.devices.items():
        if topology.chains[chain_name].address[number] in taken:
            continue
        node, chain = nodes.get(name), chains[chain_name]
        if node is None or not node.healthy or (name, index) in snapshot.bad_devices:
            chain.out += 1
        elif not node.placeable:
            chain.cordoned += 1
        else:
            chain.idle += 1
    return chains


def shortages(
    snapshot: ClusterSnapshot, engine: CellEngine, chains: Mapping[str, ChainDevices]
) -> dict[int, Shortage]:
    """Return the guarantee of each virtual cluster, and its lent and unusable devices."""
    found = {vc.id: Shortage() for vc in snapshot.vcs}
    guaranteed = {vc.id: guaranteed_by_chain(engine, vc.name) for vc in snapshot.vcs}
    for name, chain in chains.items():
        use = ChainUse(
            guaranteed={vc: devices.get(name, 0) for vc, devices in guaranteed.items()},
            used=chain.used,
            borrowed=chain.borrowed,
            out=chain.out,
            cordoned=chain.cordoned,
            total=chain.total,
        )
        for vc_id, part in missing(use).items():
            before = found[vc_id]
            found[vc_id] = Shortage(
                guaranteed=before.guaranteed + use.guaranteed[vc_id],
                lent=before.lent + part.lent,
                unusable=before.unusable + part.unhealthy + part.cordoned,
            )
    return found
