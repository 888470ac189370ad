"""Guarantees of virtual clusters: parsing of requests, and writing of rows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scheduling.clusters.models import PinnedCell, VcQuota, VirtualCluster
from scheduling.core.cells import Quota, VcSpec
from scheduling.core.messages import sentence
from scheduling.core.policies import POLICIES, UnknownPolicyError, make_policy
from scheduling.topology.current import ChainView, TopologyNow
from tenants.errors import FieldError

MOST_CELLS: Final = 100_000
_PIN: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class VcGuarantee:
    """A validated guarantee: quotas by chain and cell type, and pinned cells by name."""

    quotas: tuple[Quota, ...] = ()
    pinned: Mapping[str, str] | None = None

    @classmethod
    def of(cls, spec: VcSpec) -> "VcGuarantee":
        """Return the guarantee in ``spec`` in a canonical order, with equal quotas added up."""
        counts: dict[tuple[str, str], int] = {}
        for quota in spec.quotas:
            key = quota.chain, quota.level
            counts[key] = counts.get(key, 0) + quota.count
        return cls(
            quotas=tuple(
                Quota(chain=chain, level=level, count=count)
                for (chain, level), count in sorted(counts.items())
                if count
            ),
            pinned=dict(spec.pinned),
        )

    def as_spec(self) -> VcSpec:
        """Return the guarantee as input of the cell engine."""
        return VcSpec(quotas=self.quotas, pinned=dict(self.pinned or {}))

    def as_json(self) -> dict[str, object]:
        """Return the guarantee for the audit."""
        return {
            "cells": [{"chain": q.chain, "level": q.level, "count": q.count} for q in self.quotas],
            "pinned": dict(self.pinned or {}),
        }


def read_quotas(
    cells: object, topology: TopologyNow, faults: list[FieldError]
) -> tuple[Quota, ...]:
    """Return the quotas in ``[{chain, level, count}]``; a count of 0 removes the quota.

    ``level`` is a cell type or its display name (node, socket, ...).

    Args:
        cells: the value in the request.
        topology: existing cells.
        faults: list to which all validation errors are added.
    """
    if not isinstance(cells, Sequence) or isinstance(cells, str):
        faults.append(_fault("cells", cells, sentence("give-cells")))
        return ()
    counts: dict[tuple[str, str], int] = {}
    for position, entry in enumerate(cells):
        where = f"cells[{position}]"
        if not isinstance(entry, Mapping) or set(entry) != {"chain", "level", "count"}:
            faults.append(_fault(where, entry, sentence("give-cell-keys")))
            continue
        quota = _quota(where, entry, topology, faults)
        if quota is None:
            continue
        if (quota.chain, quota.level) in counts:
            faults.append(_fault(where, quota.level, sentence("give-level-once")))
        counts[quota.chain, quota.level] = quota.count
    return tuple(
        Quota(chain=chain, level=level, count=count)
        for (chain, level), count in sorted(counts.items())
        if count
    )


def read_pinned(pinned: object, topology: TopologyNow, faults: list[FieldError]) -> dict[str, str]:
    """Return pinned cells by name from ``[{name, address}]``.

    The function does not check whether another virtual cluster has pinned the same cell.
    """
    if not isinstance(pinned, Sequence) or isinstance(pinned, str):
        faults.append(_fault("pinned", pinned, sentence("give-pinned")))
        return {}
    found: dict[str, str] = {}
    for position, entry in enumerate(pinned):
        where = f"pinned[{position}]"
        if not isinstance(entry, Mapping) or set(entry) != {"name", "address"}:
            faults.append(_fault(where, entry, sentence("give-pinned-keys")))
            continue
        name, address = entry["name"], entry["address"]
        if not isinstance(name, str) or not _PIN.fullmatch(name) or name in found:
            faults.append(_fault(f"{where}.name", name, sentence("give-pinned-name")))
            continue
        place = topology.cell_at(address) if isinstance(address, str) else None
        if place is None or not place.complete or address in found.values():
            faults.append(_fault(f"{where}.address", address, sentence("give-whole-cell")))
            continue
        found[name] = address
    return found


def policy_faults(policy: object, args: object) -> list[FieldError]:
    """Return the faults in the name and the parameters of a policy."""
    if not isinstance(args, Mapping) or not all(isinstance(key, str) for key in args):
        return [_fault("policy_args", args, sentence("give-policy-parameters"))]
    if not isinstance(policy, str) or policy not in POLICIES:
        return [
            _fault("policy", policy, sentence("give-one-of", names=", ".join(sorted(POLICIES))))
        ]
    try:
        make_policy(policy, args)
    except (UnknownPolicyError, ValueError, TypeError) as error:
        return [
            FieldError(
                field="policy_args",
                value=dict(args),
                message=str(error),
                remedy=sentence("see-policy-parameters", policy=policy),
            )
        ]
    return []


def write_shares(shares: Mapping[VirtualCluster, VcGuarantee]) -> None:
    """Replace the guarantees of these virtual clusters; the caller has checked that all fit.

    Old guarantees are deleted before new ones are added, so that cells can change their owner.
    """
    VcQuota.objects.filter(virtual_cluster__in=list(shares)).delete()
    PinnedCell.objects.filter(virtual_cluster__in=list(shares)).delete()
    VcQuota.objects.bulk_create(
        VcQuota(virtual_cluster=vc, chain=q.chain, level=q.level, count=q.count)
        for vc, share in shares.items()
        for q in share.quotas
    )
    PinnedCell.objects.bulk_create(
        PinnedCell(virtual_cluster=vc, name=name, address=address)
        for vc, share in shares.items()
        for name, address in (share.pinned or {}).items()
    )


def _quota(
    where: str, entry: Mapping[str, Any], topology: TopologyNow, faults: list[FieldError]
) -> Quota | None:
    chain = topology.chains.get(entry["chain"]) if isinstance(entry["chain"], str) else None
    if chain is None:
        known = ", ".join(topology.chains) or sentence("none-yet-add-node")
        faults.append(
            _fault(f"{where}.chain", entry["chain"], sentence("give-one-of-existing", names=known))
        )
        return None
    level = _level(chain, entry["level"])
    count = entry["count"]
    if level is None:
        known = ", ".join(level.type for level in chain.levels)
        faults.append(
            _fault(f"{where}.level", entry["level"], sentence("give-one-of-existing", names=known))
        )
        return None
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_CELLS:
        faults.append(_fault(f"{where}.count", count, sentence("give-count")))
        return None
    return Quota(chain=chain.name, level=level, count=count)


def _level(chain: ChainView, given: object) -> str | None:
    by_type = [level.type for level in chain.levels if level.type == given]
    by_word = [level.type for level in chain.levels if level.level == given]
    return next(iter(by_type or by_word), None)


def _fault(field: str, value: object, remedy: str) -> FieldError:
    return FieldError(
        field=field, value=value, message=sentence("not-allowed-here"), remedy=remedy
    )
