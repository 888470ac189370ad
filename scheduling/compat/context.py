"""The context of an import: import rules, and the virtual clusters of the user."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from scheduling.compat.messages import phrase
from scheduling.compat.reading import Report
from scheduling.core.jobspec.errors import DocumentPlace

DEFAULT_CLUSTER: Final = "default"
NAMES_A_CLUSTER: Final = frozenset({"partition", "account", "fleet", "infra"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The meaning of a name of another system in this cluster; empty fields have no effect.

    Attributes:
        virtual_cluster: whose guarantee the job counts against.
        tenant: the virtual cluster is one of this tenant's.
        priority: name of a priority class.
        opportunistic: the job uses idle devices only.
    """

    virtual_cluster: str = ""
    tenant: str = ""
    priority: str = ""
    opportunistic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The input of a translation besides the document.

    Attributes:
        rules: by kind (partition, account, qos, fleet, infra) and name.
        clusters: tenants by virtual cluster, of those where the person may submit.
        device_types: types there are here.
        virtual_cluster: what the person chose; it goes before everything else.
        now: for times such as ``now+1hour``; None: they cannot be read.
    """

    rules: Mapping[tuple[str, str], Rule] = field(default_factory=dict)
    clusters: Mapping[str, str] = field(default_factory=dict)
    device_types: tuple[str, ...] = ()
    virtual_cluster: str = ""
    now: datetime | None = None

    def device_type(self, name: str) -> str:
        """The type as it is written here, where only capitals differ."""
        known = {each.lower(): each for each in self.device_types}
        return known.get(name.lower(), name)

    def knows_type(self, name: str) -> bool:
        """Whether a device type of this name is here, whatever its capitals."""
        return name.lower() in {each.lower() for each in self.device_types}


@dataclass(frozen=True, slots=True)
class Named:
    """A name that the document gives to a queue, an account or the like, and where."""

    kind: str
    name: str
    place: DocumentPlace


def cluster_and_priority(
    context: Context, named: Iterable[Named], report: Report
) -> dict[str, Any]:
    """Virtual cluster, priority and class of a job, by rule, by name, or by what is left.

    Args:
        context: rules and clusters.
        named: what the document names, the most telling first.
        report: takes what was guessed, and names without a rule.
    """
    chosen: dict[str, Any] = {}
    tenant, cluster = "", context.virtual_cluster
    for each in named:
        rule = context.rules.get((each.kind, each.name))
        if rule is None and each.kind in NAMES_A_CLUSTER and each.name in context.clusters:
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


def _unknown(each: Named, report: Report) -> None:
    if each.kind == "qos":
        words = phrase("import-no-rule-for-priority", kind=each.kind, name=each.name)
    elif each.kind == "priority":
        words = phrase("import-no-rule-for-priority-name", name=each.name)
    else:
        words = phrase("import-no-rule-for-cluster", kind=each.kind, name=each.name)
    report.leave_out(each.place, each.name, words, needed=each.kind != "infra")


def _left(context: Context, tenant: str, report: Report) -> str:
    """The virtual cluster of a job that names none, with a warning."""
    mine = sorted(
        name for name, owner in context.clusters.items() if not tenant or owner == tenant
    )
    found = mine[0] if mine else DEFAULT_CLUSTER
    report.warn(DocumentPlace("virtual_cluster"), phrase("import-cluster-chosen", cluster=found))
    return found
