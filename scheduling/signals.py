"""Signals to other packages: sent after the commit; no receiver is required."""

from django.dispatch import Signal

cluster_changed = Signal()
"""An input of the next round has changed. Arguments: ``cause`` (str)."""

round_committed = Signal()
"""A round has committed. Arguments: ``number`` (int), ``changed`` (bool), ``stored`` (bool: its
evidence is stored), ``new_waits`` (bool: jobs have begun to wait, or for another reason)."""

orders_changed = Signal()
"""Members have new directives for their nodes. Arguments: ``node_ids`` (frozenset of int)."""

job_transitioned = Signal()
"""The state of a job has changed. Arguments: ``job_id``, ``tenant_id``, ``virtual_cluster_id``,
``virtual_cluster`` (its name), ``before``, ``after`` (JobState)."""

node_changed = Signal()
"""A node's state or devices changed. Arguments: ``node_id``."""

answers_found = Signal()
"""Sent when estimates or remedies of waiting jobs are available; ``job_ids``: tuple of int."""
