"""Context of an import: import rules, and the virtual clusters of the user."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from scheduling.compat.messages import phrase
from scheduling.compat.reading import ParseReport
from scheduling.core.device_types import MOST_TYPES, types_named
from scheduling.core.jobspec.errors import DocumentPlace

DEFAULT_CLUSTER: Final = "default"
NAMES_A_PRIORITY: Final = frozenset({"qos", "priority"})
"""Kinds of names that mean a priority; all other kinds may be names of virtual clusters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The names of Tessera for a name of another system; empty fields have no effect.

    Attributes:
        virtual_cluster: virtual cluster of the job.
        tenant: tenant of the virtual cluster.
        priority: name of a priority class.
        opportunistic: whether the job uses idle devices only.
    """

    virtual_cluster: str = ""
    tenant: str = ""
    priority: str = ""
    opportunistic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The input of a translation besides the document.

    Attributes:
        rules: import rules by kind (partition, account, qos, fleet, infra) and name.
        clusters: tenant by virtual cluster, for virtual clusters in which the user may submit.
        device_types: device types of this cluster.
        aliases: device types by alias, as set by admins.
        virtual_cluster: the user's choice, which takes precedence over the document.
        now: the current time, for times such as ``now+1hour``; None if unavailable.
        has_cpu_pools: whether a node has CPUs and memory for jobs without devices.
    """

    rules: Mapping[tuple[str, str], Rule] = field(default_factory=dict)
    clusters: Mapping[str, str] = field(default_factory=dict)
    device_types: tuple[str, ...] = ()
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    virtual_cluster: str = ""
    now: datetime | None = None
    has_cpu_pools: bool = False

    def types_named(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the types that names or aliases mean, at most 16; unknown names are unchanged."""
        found = (
            kind
            for name in names
            for kind in types_named(name, self.device_types, self.aliases) or (name,)
        )
        return tuple(dict.fromkeys(found))[:MOST_TYPES]

    def runs_without_devices(self, role: Mapping[str, Any]) -> bool:
        """Return whether a role that requests no device runs without one.

        It must give CPUs and memory. Otherwise it reserves a device with its share.
        """
        return self.has_cpu_pools and bool(role.get("cpus") and role.get("memory"))

    def knows_type(self, name: str) -> bool:
        """Return whether a name means a device type of this cluster."""
        return bool(types_named(name, self.device_types, self.aliases))


@dataclass(frozen=True, slots=True)
class Named:
    """A name of a queue, an account or the like in the document, and its place."""

    kind: str
    name: str
    place: DocumentPlace


def cluster_and_priority(
    context: Context, named: Iterable[Named], report: ParseReport
) -> dict[str, Any]:
    """Return virtual cluster, priority and class of a job, from rules, names or defaults.

    Args:
        context: rules and virtual clusters.
        named: the names in the document, the most specific first.
        report: gets warnings about guesses and about names without a rule.
    """
    chosen: dict[str, Any] = {}
    tenant, cluster = "", context.virtual_cluster
    for each in named:
        rule = context.rules.get((each.kind, each.name))
        if rule is None and each.kind not in NAMES_A_PRIORITY and each.name in context.clusters:
            rule = Rule(virtual_cluster=each.name)
        if rule is None:
            _unknown(each, report)
            continue
        if cluster and rule.virtual_cluster not in ("", cluster):
            words = phrase("import-cluster-differs", cluster=rule.virtual_cluster, used=cluster)
            report.warn(each.place, words)
        cluster = cluster or rule.virtual_cluster
        tenant = tenant or rule.tenant
        if rule.opportunistic:
            chosen["class"] = "opportunistic"
        if rule.priority:
            chosen.setdefault("priority", rule.priority)
    if chosen.get("class"):
        chosen.pop("priority", None)
    return {"virtual_cluster": cluster or _left(context, tenant, report), **chosen}


def _unknown(each: Named, report: ParseReport) -> None:
    if each.kind == "qos":
        words = phrase("import-no-rule-for-priority", kind=each.kind, name=each.name)
    elif each.kind == "priority":
        words = phrase("import-no-rule-for-priority-name", name=each.name)
    else:
        words = phrase("import-no-rule-for-cluster", kind=each.kind, name=each.name)
    report.leave_out(each.place, each.name, words, needed=each.kind != "infra")


def _left(context: Context, tenant: str, report: ParseReport) -> str:
    """Return the virtual cluster of a job that does not name one, with a warning."""
    mine = sorted(
        name for name, owner in context.clusters.items() if not tenant or owner == tenant
    )
    found = mine[0] if mine else DEFAULT_CLUSTER
    report.warn(DocumentPlace("virtual_cluster"), phrase("import-cluster-chosen", cluster=found))
    return found
