"""Rules of the whole cluster that admins set, such as the minimum isolation level."""

from collections.abc import Callable, Mapping
from datetime import datetime

from django.db import transaction

from scheduling.clusters.models import ClusterRules, Node
from scheduling.clusters.services.inventory import apply_inventory
from scheduling.clusters.services.node_holds import cordon_by_conditions
from scheduling.clusters.services.topology import in_turn, require_places
from scheduling.common.on_commit import request_round_on_commit
from scheduling.core import canaries
from scheduling.core.jobspec import InvalidJobSpecError, parse
from scheduling.core.messages import sentence
from tenants.audit import record
from tenants.edits import require_version
from tenants.errors import FieldError, InvalidError
from tenants.roles import Permission
from tenants.viewers import Viewer
from tessera.hardware import ACTIONS, DEFAULT_ACTIONS
from tessera.inventory import Inventory
from tessera.isolation import LEVELS


def level_faults(level: object) -> list[FieldError]:
    """Return the faults of an isolation level."""
    if level in LEVELS:
        return []
    return [
        FieldError(
            field="least_isolation",
            value=level,
            message=sentence("not-isolation-level"),
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


@transaction.atomic
def set_condition_actions(
    *,
    viewer: Viewer,
    actions: Mapping[str, str],
    now: datetime,
    expected_version: int | None = None,
) -> ClusterRules:
    """Set the actions for conditions of GPUs by code, and apply them to all nodes.

    Codes that are not given get their default action.

    Raises:
        ForbiddenError: the viewer is not a cluster admin.
        InvalidError: a code or an action is not valid.
        StaleEditError: the rules were set since ``expected_version``.
    """
    viewer.require(Permission.MANAGE_NODES, what="the actions for conditions of GPUs")
    InvalidError.raise_if(action_faults(actions))
    rules, has_changed = _set_mapping(viewer, "condition_actions", actions, expected_version)
    if not has_changed:
        return rules
    for node in Node.objects.filter(removed_at=None).exclude(inventory={}).order_by("pk"):
        if node.inventory.get("conditions"):
            found = Inventory.from_json(node.inventory)
            apply_inventory(node_id=node.pk, inventory=found, now=now)
            cordon_by_conditions(node_id=node.pk, conditions=found.conditions, now=now)
    return rules


@transaction.atomic
def set_canary(
    *,
    viewer: Viewer,
    settings: Mapping[str, object],
    expected_version: int | None = None,
) -> ClusterRules:
    """Set the settings of canary jobs; those that are not given get their default.

    Raises:
        ForbiddenError: the viewer is not a cluster admin.
        InvalidError: a setting is unknown or not valid.
        StaleEditError: the rules were set since ``expected_version``.
    """
    viewer.require(Permission.MANAGE_NODES, what="canary jobs")
    InvalidError.raise_if(canary_faults(settings))
    return _set_mapping(viewer, "canary", settings, expected_version)[0]


def _set_mapping(
    viewer: Viewer, column: str, values: Mapping[str, object], expected_version: int | None
) -> tuple[ClusterRules, bool]:
    """Set a column of the rules and record it; return the rules, and whether it has changed."""
    ClusterRules.objects.get_or_create(id=1, defaults={"version": 0})
    rules = ClusterRules.objects.select_for_update().get(id=1)
    require_version(rules.version, expected_version, kind="cluster rules")
    before, after = dict(getattr(rules, column)), dict(values)
    if before == after:
        return rules, False
    setattr(rules, column, after)
    rules.version += 1
    rules.save(update_fields=[column, "version"])
    record(actor=viewer, action=f"cluster.{column}", obj=rules, before=before, after=after)
    return rules, True


def _is_image(name: str) -> bool:
    """Return whether a canary job can have this image; empty for none."""
    settings = canaries.CanarySettings(image=name)
    try:
        parse(canaries.document("any", settings))
    except InvalidJobSpecError:
        return False
    return True


def canary_faults(settings: Mapping[str, object]) -> list[FieldError]:
    """Return the faults of settings of canary jobs."""
    known: Mapping[str, Callable[[object], bool]] = {
        "enabled": lambda value: isinstance(value, bool),
        "image": lambda value: isinstance(value, str) and _is_image(value),
        "command": lambda value: isinstance(value, str) and len(value) <= canaries.MOST_COMMAND,
        "seconds": lambda value: (
            type(value) is int and canaries.LEAST_SECONDS <= value <= canaries.MOST_SECONDS
        ),
    }
    return [
        FieldError(
            field=f"canary.{name}",
            value=value,
            message=sentence("not-canary-setting"),
            remedy=sentence(
                "canary-settings", least=canaries.LEAST_SECONDS, most=canaries.MOST_SECONDS
            ),
        )
        for name, value in settings.items()
        if name not in known or not known[name](value)
    ]


def action_faults(actions: Mapping[str, str]) -> list[FieldError]:
    """Return the faults of actions by code of a condition."""
    faults = []
    for code, action in actions.items():
        is_known = code in DEFAULT_ACTIONS
        if not is_known or action not in ACTIONS:
            names = ACTIONS if is_known else sorted(DEFAULT_ACTIONS)
            faults.append(
                FieldError(
                    field=f"condition_actions.{code}",
                    value=action,
                    message=sentence("not-condition-action" if is_known else "not-condition"),
                    remedy=sentence("choices", names=", ".join(names)),
                )
            )
    return faults


def _set(viewer: Viewer, level: str, now: datetime, expected_version: int | None) -> ClusterRules:
    rules = ClusterRules.objects.select_for_update().get(id=1)
    require_version(rules.version, expected_version, kind="cluster rules")
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
