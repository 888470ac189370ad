"""Import rules: mappings of partitions, accounts and fleets of other systems."""

import re
from collections.abc import Mapping
from typing import Final

from django.db import IntegrityError, transaction

from scheduling.clusters.models import ImportRule, PriorityClass, VirtualCluster
from scheduling.compat.formats import RULE_KINDS
from scheduling.core.messages import sentence
from tenants.audit import record
from tenants.errors import DuplicateError, FieldError, InvalidError, NotFoundError
from tenants.models import Tenant
from tenants.roles import Permission
from tenants.viewers import Viewer

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@-]{0,99}")


def create_import_rule(
    *,
    viewer: Viewer,
    kind: str,
    name: str,
    virtual_cluster: str = "",
    tenant: str = "",
    priority: str = "",
    opportunistic: bool = False,
) -> ImportRule:
    """Create an import rule for a name of another system; it needs at least one value.

    Args:
        viewer: a cluster admin.
        kind: one of ``RULE_KINDS``.
        name: the name in the documents.
        virtual_cluster: virtual cluster of such jobs.
        tenant: tenant of the virtual cluster, if nothing else selects a virtual cluster.
        priority: name of a priority class.
        opportunistic: whether such jobs use idle devices only.

    Raises:
        InvalidError: values are not valid; the error lists all faults.
        DuplicateError: a rule for this name exists.
    """
    viewer.require(Permission.EDIT_VC, what="import rules")
    row = ImportRule(
        kind=kind,
        name=name,
        virtual_cluster=VirtualCluster.objects.unscoped().filter(name=virtual_cluster).first(),
        tenant=Tenant.objects.unscoped().filter(name=tenant).first(),
        priority_class=PriorityClass.objects.filter(name=priority).first(),
        is_opportunistic=opportunistic,
        created_by_id=viewer.user_id,
    )
    named = {"virtual_cluster": virtual_cluster, "tenant": tenant, "priority": priority}
    InvalidError.raise_if([*_faults(kind, name), *_meaning_faults(row, named)])
    try:
        with transaction.atomic():
            row.save(force_insert=True)
            record(actor=viewer, action="import_rule.create", obj=row, after=shown(row))
    except IntegrityError:
        raise DuplicateError(
            sentence("import-rule-exists", kind=kind, name=name),
            field="name",
            value=name,
            remedy=sentence("delete-that-first"),
        ) from None
    return row


@transaction.atomic
def delete_import_rule(*, viewer: Viewer, rule_id: int) -> None:
    """Delete a rule; jobs that were imported with it do not change.

    Raises:
        NotFoundError: the rule is unknown.
    """
    viewer.require(Permission.EDIT_VC, what="import rules")
    row = ImportRule.objects.unscoped().filter(pk=rule_id).first()
    if row is None:
        raise NotFoundError(sentence("no-such-rule"), field="id", value=rule_id)
    record(actor=viewer, action="import_rule.delete", obj=row, before=shown(row))
    row.delete()


def shown(row: ImportRule) -> dict[str, object]:
    """Return the values of a rule for the audit."""
    return {
        "kind": row.kind,
        "name": row.name,
        "virtual_cluster": row.virtual_cluster.name if row.virtual_cluster else "",
        "tenant": row.tenant.name if row.tenant else "",
        "priority": row.priority_class.name if row.priority_class else "",
        "opportunistic": row.is_opportunistic,
    }


def _faults(kind: str, name: str) -> list[FieldError]:
    found = []
    if kind not in RULE_KINDS:
        remedy = sentence("write-one-of", names=", ".join(RULE_KINDS))
        message = sentence("not-kind-of-name")
        found.append(FieldError(field="kind", value=kind, message=message, remedy=remedy))
    if not _NAME.fullmatch(name):
        remedy = sentence("use-foreign-name")
        message = sentence("not-foreign-name")
        found.append(FieldError(field="name", value=name, message=message, remedy=remedy))
    return found


def _meaning_faults(row: ImportRule, named: Mapping[str, str]) -> list[FieldError]:
    """Return the faults in the values of a rule by field."""
    there = {
        "virtual_cluster": (row.virtual_cluster, sentence("name-cluster")),
        "tenant": (row.tenant, sentence("use-existing-tenant")),
        "priority": (row.priority_class, sentence("name-class")),
    }
    found = [
        FieldError(
            field=field,
            value=value,
            message=sentence("none-of-this-name"),
            remedy=there[field][1],
        )
        for field, value in named.items()
        if value and there[field][0] is None
    ]
    if not (any(named.values()) or row.is_opportunistic):
        message = sentence("rule-without-meaning")
        remedy = sentence("specify-rule-meaning")
        found.append(FieldError(field="virtual_cluster", message=message, remedy=remedy))
    return found
