"""The filters ``translated`` and ``fault``, built into every template."""

from typing import Any

from django import template

from portal.i18n import translated as in_the_language
from tenants.errors import MOST_SAID, cut

register = template.Library()


@register.filter
def translated(text: Any) -> Any:
    """Translate an English sentence or word; names and numbers are unchanged."""
    return in_the_language(text)


@register.filter
def fault(text: Any) -> str:
    """Translate the error of a field; Django's own sentences repeat the whole input."""
    return cut(str(in_the_language(str(text))), MOST_SAID)
