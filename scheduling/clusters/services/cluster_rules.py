"""Rules of the whole cluster that admins set: the minimum isolation level."""

from datetime import datetime

from scheduling.clusters.models import ClusterRules
from scheduling.clusters.services.topology import in_turn, places_kept
from scheduling.common.on_commit import want_round
from scheduling.core.messages import sentence
from tenants.audit import record
from tenants.errors import FieldError, InvalidError, StaleEditError
from tenants.roles import Permission
from tenants.viewers import Viewer
from tessera.isolation import LEVELS


def level_faults(level: object) -> list[FieldError]:
    """The faults of an isolation level."""
    if level in LEVELS:
        return []
    return [
        FieldError(
            field="least_isolation",
            value=level,
            message="This is not an isolation level.",
            remedy=sentence("choices", names=", ".join(LEVELS)),
        )
    ]


def cluster_rules() -> ClusterRules:
    """The rules in force, or the defaults."""
    return ClusterRules.objects.first() or ClusterRules(id=1, version=0)


def set_least_isolation(
    *, viewer: Viewer, level: str, now: datetime, expected_version: int | None = None
) -> ClusterRules:
    """Let jobs run only on nodes of at least an isolation level; running jobs continue.

    Raises:
        ForbiddenError: only a cluster admin sets it.
        InvalidError: it is not an isolation level.
        DoesNotFitError: a guarantee would no longer fit; nothing was written.
        StaleEditError: it was set since ``expected_version``.
    """
    viewer.require(Permission.MANAGE_NODES, what="the cluster's isolation level")
    InvalidError.raise_if(level_faults(level))
    ClusterRules.objects.get_or_create(id=1, defaults={"version": 0})
    return in_turn(lambda: _set(viewer, level, now, expected_version))


def _set(viewer: Viewer, level: str, now: datetime, expected_version: int | None) -> ClusterRules:
    rules = ClusterRules.objects.select_for_update().get(id=1)
    if expected_version not in (None, rules.version):
        raise StaleEditError.of("cluster rules", expected_version)
    if rules.least_isolation == level:
        return rules
    before = {"least_isolation": rules.least_isolation}
    reason = "minimum isolation level"
    with places_kept(field="least_isolation", reason=reason, user_id=viewer.user_id, now=now):
        rules.least_isolation, rules.version = level, rules.version + 1
        rules.save(update_fields=["least_isolation", "version"])
    record(
        actor=viewer,
        action="cluster.least_isolation",
        obj=rules,
        before=before,
        after={"least_isolation": level},
    )
    want_round("isolation")
    return rules
