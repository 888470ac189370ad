"""The filter ``said``, which every template knows without loading it."""

from typing import Any

from django import template

from portal.i18n import said as in_the_language

register = template.Library()


@register.filter
def said(text: Any) -> Any:
    """An English sentence or word in the language of the page; names and numbers stay."""
    return in_the_language(text)
