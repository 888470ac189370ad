"""Shadow policies, which decide every stored round of a virtual cluster without effect."""

import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from django.db import IntegrityError, transaction

from scheduling.clusters.models import VirtualCluster
from scheduling.clusters.models.virtual_clusters import active_shadows
from scheduling.clusters.services.vc_values import MAX_SHADOW_POLICIES
from scheduling.common.canonical_json import canonical_json
from scheduling.common.time_limits import time_limit
from scheduling.core.policies import make_policy
from scheduling.core.round.policy_answers import MakePolicy
from scheduling.core.round.shadow_decisions import ShadowAnswer, shadow_round
from scheduling.core.round.stored import read_stored
from scheduling.core.round_result import RoundResult
from scheduling.core.values import ClusterSnapshot
from scheduling.rounds.models import Round
from scheduling.rounds.services.evidence import read_round, store_shadows
from scheduling.storage.base import FileStorage
from scheduling.what_if.models import ShadowDecision

POLICY_SECONDS: Final = 30.0
"""Time limit of a shadow policy; no round waits for it."""


def shadow_kind(policy: str, args: Mapping[str, Any]) -> str:
    """Return the identity of a shadow policy: a hash of policy and parameters."""
    return hashlib.sha256(canonical_json([policy, args])).hexdigest()


def decide_shadows(
    *,
    number: int,
    storage: FileStorage,
    now: datetime,
    make: MakePolicy = make_policy,
    policy_seconds: float = POLICY_SECONDS,
) -> int:
    """Decide a stored round with the shadow policies of all virtual clusters; idempotent.

    Args:
        number: number of the round.
        storage: has the files of rounds.
        now: time to store with the decisions.
        make: builds a policy from its name and parameters.
        policy_seconds: time limit of each policy.

    Returns:
        The number of stored decisions.
    """
    watched = list(
        VirtualCluster.objects.unscoped()
        .filter(archived_at=None)
        .exclude(shadows=[])
        .order_by("id")
    )
    stored = Round.objects.filter(number=number).exclude(snapshot_path="").first()
    if stored is None or not watched or stored.shadow_decisions.exists():
        return 0
    snapshot, result = read_stored(read_round(storage=storage, stored=stored))
    deciding = _Deciding(stored, snapshot, result, make, policy_seconds)
    rows, answers = [], []
    for vc in watched:
        for row, answer in deciding.of(vc, now):
            rows.append(row)
            answers.append({"virtual_cluster": vc.pk, "kind": row.kind, **_told(answer)})
    try:
        with transaction.atomic():
            ShadowDecision.objects.bulk_create(rows)
            store_shadows(storage=storage, stored=stored, answers=answers)
    except IntegrityError:
        return 0  # another worker stored the decision first, or the round was pruned
    return len(rows)


class _Deciding:
    """One stored round and the shadow policies that decide it."""

    def __init__(
        self,
        stored: Round,
        snapshot: ClusterSnapshot,
        result: RoundResult,
        make: MakePolicy,
        policy_seconds: float,
    ) -> None:
        self._stored = stored
        self._snapshot = snapshot
        self._result = result
        self._make = make
        self._limit = time_limit(policy_seconds)
        self._known = {vc.id for vc in snapshot.vcs}

    def of(
        self, vc: VirtualCluster, now: datetime
    ) -> Iterator[tuple[ShadowDecision, ShadowAnswer]]:
        """Yield the decisions of one virtual cluster's shadow policies.

        A virtual cluster that was created after the round has none.
        """
        shadows = vc.shadows if vc.pk in self._known else []
        for shadow in active_shadows(shadows, now)[:MAX_SHADOW_POLICIES]:
            policy, args = shadow["policy"], shadow["policy_args"]
            kind = shadow_kind(policy, args)
            begun = time.perf_counter()
            answer = shadow_round(
                self._snapshot,
                self._result,
                vc_id=vc.pk,
                policy=policy,
                args=args,
                state=self._state(vc, kind),
                limit=self._limit,
                make=self._make,
            )
            yield (
                ShadowDecision(
                    round=self._stored,
                    virtual_cluster=vc,
                    kind=kind,
                    policy=policy,
                    policy_args=args,
                    decided_at=now,
                    duration_ms=round((time.perf_counter() - begun) * 1000.0, 3),
                    fault=answer.fault,
                    starts=len(answer.starts),
                    both=len(answer.both),
                    only_shadow=len(answer.only_shadow),
                    only_live=len(answer.only_live),
                    leaving=len(answer.leaving),
                    state=dict(answer.state),
                ),
                answer,
            )

    def _state(self, vc: VirtualCluster, kind: str) -> Mapping[str, Any]:
        """Return the state that the same shadow policy returned in the newest earlier round."""
        before = ShadowDecision.objects.filter(
            virtual_cluster=vc, kind=kind, round__number__lt=self._stored.number
        )
        state: Mapping[str, Any] | None = (
            before.order_by("-round__number").values_list("state", flat=True).first()
        )
        return state or {}


def _told(answer: ShadowAnswer) -> dict[str, Any]:
    """Return a decision for its file, without the state, which is in the row."""
    told = asdict(answer)
    del told["state"]
    return told
