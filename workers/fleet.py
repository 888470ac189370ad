"""Utilisation of the devices of one node over time, from its telemetry."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from scheduling.clusters.models import Node
from scheduling.core.messages import sentence
from tenants.errors import NotFoundError
from tenants.roles import Permission
from tenants.viewers import Viewer
from workers.models import NodeTelemetry
from workers.services.telemetry import floored

FINE: Final = 600
HOUR: Final = 3600

DeviceShares = Mapping[int, Mapping[datetime, float]]
"""Mean utilisation (0 to 1) by device number and start of the interval."""


def device_shares(
    viewer: Viewer, name: str, *, since: datetime, span_seconds: int
) -> DeviceShares:
    """Return the mean utilisation of each device of a node, in three queries.

    Args:
        viewer: the reader.
        name: name of the node.
        since: start of the range.
        span_seconds: length of an interval.

    Raises:
        ForbiddenError: the viewer may not see the cluster.
        NotFoundError: the node does not exist.
    """
    viewer.require(Permission.VIEW_CLUSTER, what=sentence("the-cluster"))
    node = Node.objects.filter(name=name.replace("\x00", ""), removed_at=None).first()
    if node is None:
        raise NotFoundError(sentence("no-such-node"), field="node", value=name)
    fine = HOUR if span_seconds > HOUR else FINE
    rows = NodeTelemetry.objects.filter(node=node, at__gte=since).order_by("at")
    rolled = list(rows.filter(span_seconds=fine).values_list("at", "utilisation"))
    # The newest minutes have no roll-up yet.
    minutes = rows.filter(span_seconds=60)
    if rolled:
        minutes = minutes.filter(at__gt=rolled[-1][0])
    weights = [(at, fine, shares) for at, shares in rolled]
    weights += [(at, 60, shares) for at, shares in minutes.values_list("at", "utilisation")]
    sums: dict[int, dict[datetime, list[float]]] = defaultdict(dict)
    for at, seconds, shares in weights:
        place = floored(at, span_seconds)
        for index, share in enumerate(shares):
            if share is not None:
                total = sums[index].setdefault(place, [0.0, 0.0])
                total[0] += share * seconds
                total[1] += seconds
    return {
        index: {at: total / seconds for at, (total, seconds) in spans.items()}
        for index, spans in sorted(sums.items())
    }
