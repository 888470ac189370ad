"""Rules of the whole cluster that admins set, such as the minimum isolation level."""

from datetime import datetime

from scheduling.clusters.models import ClusterRules
from scheduling.clusters.services.topology import in_turn, require_places
from scheduling.common.on_commit import request_round_on_commit
from scheduling.core.messages import sentence
from tenants.audit import record
from tenants.errors import FieldError, InvalidError, StaleEditError
from tenants.roles import Permission
from tenants.viewers import Viewer
from tessera.isolation import LEVELS


def level_faults(level: object) -> list[FieldError]:
    """Return the faults of an isolation level."""
    if level in LEVELS:
        return []
    return [
        FieldError(
            field="least_isolation",
            value=level,
            message="This is not a valid isolation level.",
            remedy=sentence("choices", names=", ".join(LEVELS)),
        )
    ]


def cluster_rules() -> ClusterRules:
    """Return the current rules, or the defaults."""
    return ClusterRules.objects.first() or ClusterRules(id=1, version=0)


def set_least_isolation(
    *, viewer: Viewer, level: str, now: datetime, expected_version: int | None = None
) -> ClusterRules:
    """Set the minimum isolation level of nodes that take jobs; running jobs continue.

    Raises:
        ForbiddenError: the viewer is not a cluster admin.
        InvalidError: the value is not an isolation level.
        DoesNotFitError: a guarantee would not fit any more; nothing was written.
        StaleEditError: the level was set since ``expected_version``.
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
    with require_places(field="least_isolation", reason=reason, user_id=viewer.user_id, now=now):
        rules.least_isolation, rules.version = level, rules.version + 1
        rules.save(update_fields=["least_isolation", "version"])
    record(
        actor=viewer,
        action="cluster.least_isolation",
        obj=rules,
        before=before,
        after={"least_isolation": level},
    )
    request_round_on_commit("isolation")
    return rules
