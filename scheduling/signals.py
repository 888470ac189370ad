"""News that goes up: sent after commit, received by rooms above, relied on by nobody."""

from django.dispatch import Signal

round_wanted = Signal()
"""Something changed that the next round should see. Arguments: ``cause`` (str)."""

round_due = Signal()
"""A policy wants to be asked at an instant before the next tick. Arguments: ``at`` (datetime)."""

round_committed = Signal()
"""A round has committed. Arguments: ``number`` (int), ``changed`` (bool), ``stored`` (bool: its
evidence is kept), ``new_waits`` (bool: jobs wait that did not, or for another reason)."""

orders_changed = Signal()
"""Members have orders for their nodes. Arguments: ``node_ids`` (frozenset of int)."""

what_if_asked = Signal()
"""Somebody asks what another policy would have made of past days. Arguments: ``pk`` (int)."""

job_transitioned = Signal()
"""A job has moved. Arguments: ``job_id``, ``tenant_id``, ``virtual_cluster_id``,
``virtual_cluster`` (its name), ``before``, ``after`` (JobState)."""

node_changed = Signal()
"""A node's state or devices changed. Arguments: ``node_id``."""

round_taken = Signal()
"""A round that was asked for is about to begin. Arguments: ``after`` (int: how many had begun by
then). Receivers say True if another one has begun since, which saw all that this one would."""

round_begins = Signal()
"""A round is about to read: whatever asks for a round from now on needs another one."""

estimates_rest = Signal()
"""Starts are being estimated, or that took long: no others for now. Arguments: ``seconds``."""

new_waits_begin = Signal()
"""What jobs that wait anew would want to know is being worked out from now on."""

new_waits_end = Signal()
"""That is done. Arguments: ``seconds`` (float: how long nobody shall ask for it again), ``others``
(asked once rounds ask again themselves: whether others have come to wait meanwhile)."""

answers_found = Signal()
"""What was being worked out about waiting jobs is known. Arguments: ``job_ids`` (tuple of int)."""
