"""The jobs that held most in a period: looked for once for as long as the rows stay the same."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Any, Final

from django.db.models import Count, F, Max, QuerySet, Sum

from scheduling.clusters.models import VirtualCluster
from tenants.models import User

KEPT: Final = 16
SUMS: Final = ("guaranteed", "borrowed", "lost_preempted", "lost_failed")
_HELD: Final = F("guaranteed") + F("borrowed")
_Row = dict[str, Any]


def rows_of_jobs(period: "QuerySet[Any]", seen: Hashable, *, most: int) -> list[_Row]:
    """Sums of those that held most, GPUs and slots apart, with the names of now.

    Of jobs there may be very many, and their rows are written once an hour.

    Args:
        period: the rows of days of jobs that the viewer may see.
        seen: all that decides which rows these are, and what all of them hold together.
        most: rows that are given at most.
    """
    same = period.aggregate(rows=Count("id"), last=Max("id"), jobs=Sum("job"))
    found = _KEPT.of((seen, most, *same.values()), period, most)
    users = _names(User.objects.filter(pk__in={row["owner_id"] for row in found}), "username")
    clusters = VirtualCluster.objects.unscoped()
    vcs = _names(clusters.filter(pk__in={row["virtual_cluster_id"] for row in found}), "name")
    return [
        {
            **row,
            "owner__username": users[row["owner_id"]],
            "virtual_cluster__name": vcs[row["virtual_cluster_id"]],
        }
        for row in found
    ]


def _names(rows: "QuerySet[Any]", column: str) -> dict[int, str]:
    return dict(rows.order_by().values_list("id", column))


def _search(period: "QuerySet[Any]", most: int) -> list[_Row]:
    """In two steps: the sums of all jobs need no more of a row than what it held."""
    held = period.values("job", "is_gpu").annotate(held=Sum(_HELD)).order_by("-held", "-job")
    wanted = set(held.values_list("job", "is_gpu")[:most])
    rows = period.filter(job__in={job for job, _ in wanted})
    columns = ("job", "name", "owner_id", "virtual_cluster_id", "tenant_id", "is_gpu")
    found = rows.values(*columns).annotate(**{f"sum_{name}": Sum(name) for name in SUMS})
    return [row for row in found if (row["job"], row["is_gpu"]) in wanted]


class _Kept:
    """What was found for the readers of late."""

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, list[_Row]] = OrderedDict()
        self._lock = Lock()

    def of(self, key: Hashable, period: "QuerySet[Any]", most: int) -> list[_Row]:
        with self._lock:
            known = self._found.get(key)
        if known is None:
            known = _search(period, most)
            with self._lock:
                self._found[key] = known
                while len(self._found) > KEPT:
                    self._found.popitem(last=False)
        return known


_KEPT: Final = _Kept()
