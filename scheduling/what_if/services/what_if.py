"""Requests of what-ifs, their computation in a separate process, and results stored for a day."""

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any, Final

from django.db import transaction
from django.db.models import Exists, Q, QuerySet

from scheduling import ports
from scheduling.clusters.models import Device, VirtualCluster
from scheduling.clusters.services.shares import policy_faults
from scheduling.common.time_limits import time_limit
from scheduling.core.messages import sentence
from scheduling.core.simulation.planned_nodes import MOST_NODES
from scheduling.storage.base import FileStorage
from scheduling.what_if.models import WhatIf, WhatIfKind
from scheduling.what_if.queries import newest_advice
from scheduling.what_if.services.advice import ADVICE_SECONDS, advice_steps, advise
from scheduling.what_if.services.recorded_days import recorded_days
from scheduling.what_if.services.replays import replay
from tenants.audit import record
from tenants.errors import ConflictError, DomainError, FieldError, InvalidError, NotFoundError
from tenants.roles import Permission
from tenants.viewers import Viewer

logger = logging.getLogger(__name__)

KEPT: Final = timedelta(days=1)
LOST_AFTER: Final = timedelta(seconds=30)
MOST_OPEN: Final = 4
"""Limit of open what-ifs of one person."""

MOST_SPAN: Final = timedelta(days=31)
KEPT_REGRET: Final = timedelta(days=31)
"""The newest advice of a virtual cluster stays for this time, for the metric of its regret."""

ANSWER_SECONDS: Final = 600.0
_LIMITS: Final = {WhatIfKind.WHAT_IF: ANSWER_SECONDS, WhatIfKind.ADVICE: 1.2 * ADVICE_SECONDS}
DEAD_AFTER: Final = timedelta(seconds=2 * ANSWER_SECONDS)
"""A process without progress for this time counts as dead; longer than any computation."""

CANCEL_SECONDS: Final = 1.0
MOST_DEVICES: Final = 100_000
STEPS: Final = ("reading the stored rounds", "the policy at that time", "the other policy")
"""Names of the values of ``WhatIf.step``, from 0."""


def ask_what_if(
    *,
    viewer: Viewer,
    virtual_cluster: str,
    policy: str,
    policy_args: Mapping[str, Any],
    since: datetime,
    until: datetime,
    size_aware: bool,
    now: datetime,
    guarantee: Mapping[str, int] | None = None,
) -> WhatIf:
    """Request a what-if for a past period of a virtual cluster.

    Args:
        viewer: the requester.
        virtual_cluster: name of the virtual cluster.
        policy: the other policy; the recorded one if only the guarantee differs.
        policy_args: parameters of the other policy.
        since: start of the period.
        until: end of the period.
        size_aware: whether policies get the remaining work of jobs.
        now: the current time.
        guarantee: devices by type; other types are unchanged.

    Raises:
        InvalidError: the policy, its parameters, the guarantee or the period is not valid.
        NotFoundError: the virtual cluster is unknown, or the viewer may not see its jobs.
        ConflictError: the viewer has too many open what-ifs.
    """
    vc = _asked_about(viewer, virtual_cluster)
    faults = [*policy_faults(policy, policy_args), *_guarantee_faults(guarantee or {})]
    InvalidError.raise_if([*faults, *_span_faults(since, until, now)])
    _check_open(viewer, policy, now)
    question = WhatIf(
        tenant_id=vc.tenant_id,
        virtual_cluster=vc,
        asked_by_id=viewer.user_id,
        policy=policy,
        policy_args=dict(policy_args),
        since=since,
        until=until,
        size_aware=size_aware,
        guarantee=dict(guarantee or {}),
        asked_at=now,
    )
    _store_question(viewer, question)
    return question


def ask_advice(
    *,
    viewer: Viewer,
    virtual_cluster: str,
    since: datetime,
    until: datetime,
    now: datetime,
    nodes: Mapping[str, int] | None = None,
) -> WhatIf:
    """Request a replay of a past period of a virtual cluster under every policy.

    Args:
        viewer: the requester.
        virtual_cluster: name of the virtual cluster.
        since: start of the period.
        until: end of the period.
        now: the current time.
        nodes: by device type, the number of nodes more, or fewer if negative.

    Raises:
        InvalidError: the period or the nodes are not valid.
        NotFoundError: the virtual cluster is unknown, or the viewer may not see its jobs.
        ConflictError: the viewer has too many open what-ifs.
    """
    vc = _asked_about(viewer, virtual_cluster)
    planned = dict(nodes or {})
    InvalidError.raise_if([*_node_faults(planned), *_span_faults(since, until, now)])
    _check_open(viewer, vc.policy, now)
    question = WhatIf(
        tenant_id=vc.tenant_id,
        virtual_cluster=vc,
        asked_by_id=viewer.user_id,
        kind=WhatIfKind.ADVICE,
        policy=vc.policy,
        policy_args=vc.policy_args,
        since=since,
        until=until,
        nodes={kind: count for kind, count in planned.items() if count},
        steps=advice_steps(vc.policy),
        asked_at=now,
    )
    _store_question(viewer, question)
    return question


def _store_question(viewer: Viewer, question: WhatIf) -> None:
    with transaction.atomic():
        question.save(force_insert=True)
        _record_question(viewer, question)
        transaction.on_commit(lambda: ports.bound().what_ifs.request(question.pk))


def _asked_about(viewer: Viewer, name: str) -> VirtualCluster:
    vc: VirtualCluster | None = (
        VirtualCluster.objects.visible_to(viewer).filter(name=name[:63]).first()
    )
    if vc is None or not viewer.can(Permission.VIEW_JOBS, vc.tenant_id):
        raise NotFoundError(sentence("no-such-cluster"), field="virtual_cluster", value=name)
    return vc


def _span_faults(since: datetime, until: datetime, now: datetime) -> list[FieldError]:
    if timedelta(0) < until - since <= MOST_SPAN and since <= now:
        return []
    return [
        FieldError(
            field="since",
            value=since.isoformat(),
            message=sentence("not-past-span"),
            remedy=sentence("give-past-span", days=MOST_SPAN.days),
        )
    ]


def _guarantee_faults(wanted: Mapping[str, int]) -> list[FieldError]:
    known = set(Device.objects.filter(retired_at=None).values_list("device_type", flat=True))
    return [
        FieldError(
            field="guarantee",
            value={kind: devices},
            message=sentence("not-number-devices-type"),
            remedy=sentence("name-types", names=", ".join(sorted(known))),
        )
        for kind, devices in wanted.items()
        if kind not in known or not 0 <= devices <= MOST_DEVICES
    ]


def _node_faults(wanted: Mapping[str, int]) -> list[FieldError]:
    known = set(Device.objects.filter(retired_at=None).values_list("device_type", flat=True))
    return [
        FieldError(
            field="nodes",
            value={kind: count},
            message=sentence("not-number-nodes-type"),
            remedy=sentence("use-node-changes", types=", ".join(sorted(known)), most=MOST_NODES),
        )
        for kind, count in wanted.items()
        if kind not in known or not -MOST_NODES <= count <= MOST_NODES
    ]


def _check_open(viewer: Viewer, policy: str, now: datetime) -> None:
    waiting = WhatIf.objects.visible_to(viewer).filter(
        asked_by_id=viewer.user_id, finished_at=None, asked_at__gt=now - KEPT
    )
    if waiting.count() >= MOST_OPEN:
        raise ConflictError(
            sentence("too-many-questions", most=MOST_OPEN),
            field="policy",
            value=policy,
            remedy=sentence("wait-one-them"),
        )


def _record_question(viewer: Viewer, question: WhatIf) -> None:
    after = {"policy": question.policy, "policy_args": question.policy_args}
    if question.guarantee:
        after["guarantee"] = question.guarantee
    if question.kind == WhatIfKind.ADVICE:
        after = {"nodes": question.nodes} if question.nodes else {}
    record(
        actor=viewer,
        action="what-if.ask" if question.kind == WhatIfKind.WHAT_IF else "policy-advice.ask",
        object_type="virtualcluster",
        object_id=question.virtual_cluster_id,
        object_name=question.virtual_cluster.name,
        after=after,
        tenant=question.tenant_id,
    )


def what_ifs_of(
    viewer: Viewer, *, now: datetime, kind: WhatIfKind = WhatIfKind.WHAT_IF
) -> QuerySet[WhatIf]:
    """Return the what-ifs of the last day about virtual clusters whose jobs the viewer may see."""
    rows = WhatIf.objects.visible_to(viewer).filter(asked_at__gt=now - KEPT, kind=kind)
    tenants = rows.order_by().values_list("tenant_id", flat=True).distinct()
    allowed = [pk for pk in tenants if viewer.can(Permission.VIEW_JOBS, pk)]
    return rows.filter(tenant_id__in=allowed).select_related("virtual_cluster", "asked_by")


def what_if_for(
    viewer: Viewer, pk: int, *, now: datetime, kind: WhatIfKind = WhatIfKind.WHAT_IF
) -> WhatIf:
    """Return a what-if with its result, if any; a lost request is sent again.

    Raises:
        NotFoundError: the what-if is unknown, older than a day, or the viewer may not see it.
    """
    found = what_ifs_of(viewer, now=now, kind=kind).filter(pk=pk).first()
    if found is None:
        raise NotFoundError(sentence("no-such-question"), field="id", value=pk)
    lost = found.begun_at is None and now - found.asked_at > LOST_AFTER
    died = found.begun_at is not None and now - found.begun_at > DEAD_AFTER
    is_open = found.finished_at is None and (lost or died)
    # A process that computes another what-if takes this one next, so no second process is needed.
    if is_open and not _being_answered(now).exists():
        ports.bound().what_ifs.request(found.pk)
    return found


def cancel_what_if(
    viewer: Viewer, pk: int, *, now: datetime, kind: WhatIfKind = WhatIfKind.WHAT_IF
) -> WhatIf:
    """End a what-if without a result; a finished one does not change.

    Raises:
        NotFoundError: as for ``what_if_for``.
        ForbiddenError: another person has requested it, and the viewer is no cluster admin.
    """
    found = what_if_for(viewer, pk, now=now, kind=kind)
    if found.asked_by_id != viewer.user_id:
        viewer.require(Permission.EDIT_VC, what=sentence("the-what-if"))
    fault = sentence("query-cancelled")
    WhatIf.objects.unscoped().filter(pk=found.pk, finished_at=None).update(
        finished_at=now, fault=fault
    )
    found.refresh_from_db()
    return found


def next_what_if(*, now: datetime) -> int | None:
    """Return the ID of the oldest what-if that waits for a process, or None."""
    waiting = _free(now).filter(asked_at__gt=now - KEPT).order_by("id")
    found: int | None = waiting.values_list("pk", flat=True).first()
    return found


def _free(now: datetime) -> QuerySet[WhatIf]:
    """Return what-ifs without a process, or whose process has died."""
    free = Q(begun_at=None) | Q(begun_at__lt=now - DEAD_AFTER)
    return WhatIf.objects.unscoped().filter(free, finished_at=None)


def _being_answered(now: datetime) -> QuerySet[WhatIf]:
    return WhatIf.objects.unscoped().filter(finished_at=None, begun_at__gte=now - DEAD_AFTER)


def answer_what_if(*, pk: int, storage: FileStorage, now: datetime) -> bool:
    """Compute a what-if that no process has begun; return whether this process computed it.

    Only one what-if is computed at a time in the whole cluster, so that they never use all
    processors.
    """
    if not _free(now).filter(~Exists(_being_answered(now)), pk=pk).update(begun_at=now):
        return False

    asked = WhatIf.objects.unscoped().select_related("virtual_cluster").get(pk=pk)
    begun = time.monotonic()
    fault, result, seconds = "", {}, _LIMITS[WhatIfKind(asked.kind)]
    try:
        with time_limit(seconds)():
            result = _replayed(asked, storage, now)
    except DomainError as error:
        fault = str(error)
    except _CancelledError:
        return True
    except TimeoutError:
        fault = sentence("query-timed-out", seconds=format(seconds, "g"))
    except Exception as error:  # otherwise the what-if would stay open for a day
        logger.exception("what-if %s failed", pk)
        fault = sentence("query-failed", error=type(error).__name__)
    except BaseException:  # terminated: another worker may continue at once
        WhatIf.objects.unscoped().filter(pk=pk).update(begun_at=None, step=0)
        raise
    WhatIf.objects.unscoped().filter(pk=pk, finished_at=None).update(
        fault=fault[:500],
        result=result,
        finished_at=now + timedelta(seconds=time.monotonic() - begun),
    )
    return True


class _CancelledError(Exception):
    """The what-if was cancelled, or deleted, while it was computed."""


class _Cancelling:
    """Raises ``_CancelledError`` soon after a cancellation; it asks at most once a second."""

    def __init__(self, pk: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._open = WhatIf.objects.unscoped().filter(pk=pk, finished_at=None)
        self._clock = clock
        self._asked = clock()

    def __call__(self) -> None:
        if self._clock() - self._asked < CANCEL_SECONDS:
            return
        self._asked = self._clock()
        if not self._open.exists():
            raise _CancelledError


def _replayed(asked: WhatIf, storage: FileStorage, now: datetime) -> dict[str, Any]:
    def comes_to(step: int) -> None:
        if not WhatIf.objects.unscoped().filter(pk=asked.pk, finished_at=None).update(step=step):
            raise _CancelledError

    days = recorded_days(
        vc=asked.virtual_cluster,
        since=asked.since,
        until=asked.until,
        storage=storage,
        now=now,
    )
    go_on = _Cancelling(asked.pk)
    if asked.kind == WhatIfKind.ADVICE:
        return advise(days, nodes=asked.nodes, comes_to=comes_to, go_on=go_on)
    return replay(
        days,
        asked.policy,
        asked.policy_args,
        size_aware=asked.size_aware,
        guarantee=asked.guarantee,
        comes_to=comes_to,
        go_on=go_on,
    )


def forget_what_ifs(*, now: datetime) -> int:
    """Delete what-ifs a day after their request, and return their number.

    The newest advice of each virtual cluster stays longer, for the metric of its regret.
    """
    old = WhatIf.objects.unscoped().filter(asked_at__lt=now - KEPT)
    newest = [row.pk for row in newest_advice(since=now - KEPT_REGRET).values()]
    gone, _ = old.exclude(pk__in=newest).delete()
    return gone


MOST_AT_ONCE: Final = 2
"""One that computes, or is about to end, and one that takes later requests."""

_started: Final[list["subprocess.Popen[bytes]"]] = []
_STARTING: Final = Lock()


def start_answering(*, project: Path) -> None:
    """Start a process that computes queued what-ifs.

    The process ends with this one, or at once if another one is active. At most two run: pages
    poll while they wait, and under load a process starts more slowly than pages poll.

    Args:
        project: the directory of ``manage.py``.
    """
    with _STARTING:
        # This reaps processes that have ended.
        _started[:] = [process for process in _started if process.poll() is None]
        if len(_started) >= MOST_AT_ONCE:
            return
        _started.append(
            subprocess.Popen(
                [sys.executable, "manage.py", "answer_what_ifs", "--with-parent"],
                cwd=project,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        )
