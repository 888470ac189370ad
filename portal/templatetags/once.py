"""``{% load once %}``: the token of idempotent forms."""

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal.web.forms import FIELD, new_once

register = template.Library()


@register.simple_tag
def once() -> SafeString:
    """Render a hidden field with the form token; see ``portal.web.forms``."""
    return format_html('<input type="hidden" name="{}" value="{}">', FIELD, new_once())
