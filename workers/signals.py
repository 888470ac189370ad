"""Signals of the workers: hints for live pages, sent after the commit."""

from django.dispatch import Signal

log_grew = Signal()
"""A piece of a log has arrived. Arguments: ``job_id``, ``attempt`` (number), ``role``, ``rank``,
``offset`` (of the text's first byte), ``text``, ``next_offset``, ``end`` (nothing follows)."""

goodput_sampled = Signal()
"""A sample was written or added to. Arguments: ``job_id``, ``attempt_id``, ``at`` (datetime)."""

telemetry_seen = Signal()
"""A new reading of a node. Arguments: ``node_id``, ``at``, ``reading`` (dict for JSON)."""

image_progress = Signal()
"""An image is being pulled. Arguments: ``job_id``, ``attempt`` (number), ``role``, ``rank``,
``text``."""
