"""Limits of guests on a node, or on one of its devices."""

from datetime import datetime

from django.db import transaction
from django.db.models import F, Q

from scheduling.clusters.models import Node
from scheduling.clusters.services.node_rows import node_to_edit, signal_change, write_node
from scheduling.core.messages import sentence
from scheduling.core.sharing.hosts import Consent
from scheduling.runs.services.guests import clear_guests
from tenants.audit import record
from tenants.errors import InvalidError, NotFoundError
from tenants.viewers import Viewer


@transaction.atomic
def limit_guests(
    *, viewer: Viewer, node_id: int, guests: str, device: int | None = None, now: datetime
) -> Node:
    """Limit the guests on a node, or on one of its devices; others leave within 5 s.

    Args:
        viewer: a cluster admin.
        node_id: ID of the node.
        guests: the guests that are allowed at most (``Consent``), whatever holders allow.
        device: number of the device; None for the node.
        now: the current time.

    Raises:
        ForbiddenError: the viewer may not manage nodes.
        NotFoundError: the node or the device is unknown.
        InvalidError: the limit is not valid.
    """
    node = node_to_edit(viewer, node_id)
    if guests not in [consent.value for consent in Consent]:
        raise InvalidError(sentence("not-consent"), field="guests", value=guests)
    if device is None:
        write_node(
            actor=viewer, node=node, action="node.guests", values={"guests": guests}, now=now
        )
        here = Q(device__node=node)
    else:
        row = node.devices.select_for_update().filter(index=device, retired_at=None).first()
        if row is None:
            raise NotFoundError(
                sentence("no-such-device", name=node.name, index=device),
                field="device",
                value=device,
            )
        if row.guests != guests:
            before, row.guests = row.guests, guests
            row.save(update_fields=["guests"])
            record(
                actor=viewer,
                action="device.guests",
                obj=node,
                before={"device": device, "guests": before},
                after={"device": device, "guests": guests},
            )
            signal_change(node)
        here = Q(device=row)
    if guests == Consent.NONE:
        clear_guests(here, rule=sentence("guest-leaves-node"), now=now)
    elif guests == Consent.SAME_TENANT:
        others = ~Q(job__tenant_id=F("beside__attempt__job__tenant_id"))
        clear_guests(here & others, rule=sentence("guest-leaves-node"), now=now)
    return node
