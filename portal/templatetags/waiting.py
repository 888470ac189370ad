"""Filters for texts about waiting jobs."""

import json
import math

from django import template
from django.utils.translation import gettext as _

from portal.web.components import words
from scheduling.estimates.queries import Eta
from tenants.clock import estimated_now

register = template.Library()


@register.filter
def eta(value: Eta | None) -> str:
    """Render the start estimate of a job as a range."""
    if value is None:
        return _("no estimate yet")
    now = estimated_now()
    p10, _p50, p90 = value.seconds(now)
    return words.estimate(
        p10, math.inf if value.is_open else p90, now, soonest=value.opens_in(now)
    )


@register.filter
def as_json(value: object) -> str:
    """Serialise changes as a form posts them."""
    return json.dumps(value)
