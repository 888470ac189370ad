"""The filters ``said`` and ``fault``, which every template knows without loading them."""

from typing import Any

from django import template

from portal.i18n import said as in_the_language
from tenants.errors import MOST_SAID, cut

register = template.Library()


@register.filter
def said(text: Any) -> Any:
    """An English sentence or word in the language of the page; names and numbers stay."""
    return in_the_language(text)


@register.filter
def fault(text: Any) -> str:
    """What is wrong with a field, likewise; Django's own sentences repeat all that was sent."""
    return cut(str(in_the_language(str(text))), MOST_SAID)
