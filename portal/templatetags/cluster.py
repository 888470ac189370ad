"""Template tags of the pages about the cluster: ``{% load cluster %}``."""

from django import template
from django.forms import Form
from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal.web.addresses import address

register = template.Library()


@register.simple_tag
def page_url(name: str, *args: object) -> str:
    """The address of a named page; empty where there is no such page."""
    return address(name, *args)


@register.filter
def wants(text: str) -> tuple[str, str]:
    """What a job wants in two lines: how much, and the shape it must have."""
    much, found, shape = text.partition(" in one ")
    return (much, f"in one {shape}") if found and "," not in text else (text, "")


@register.filter
def sentence(text: str) -> str:
    """A step or reason with a capital first letter and without its full stop."""
    stripped = text.strip().rstrip(".")
    return stripped[:1].upper() + stripped[1:]


@register.filter
def words(text: str) -> list[str]:
    """The words of a text, to loop over."""
    return text.split()


@register.simple_tag
def hidden_value(form: Form, name: str) -> SafeString:
    """A field of a bound form as a hidden input with what was sent."""
    return format_html(
        '<input type="hidden" name="{}" value="{}">', name, form[name].value() or ""
    )
