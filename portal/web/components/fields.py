"""Inputs of forms, wired for assistive technology."""

from typing import Any

from django.forms import BoundField
from django.utils.safestring import SafeString

from portal.i18n import translated


def widget(bound: BoundField, *, mono: bool) -> SafeString:
    """Render the input with its style, and with the ids of its descriptions."""
    checkbox = getattr(bound.field.widget, "input_type", "") == "checkbox"
    css = "check" if checkbox else ("input mono" if mono else "input")
    attrs: dict[str, Any] = {"class": f"{bound.field.widget.attrs.get('class', '')} {css}".strip()}
    described = [f"{bound.id_for_label}-hint"]
    if bound.errors:
        described.append(f"{bound.id_for_label}-error")
    if also := bound.field.widget.attrs.get("aria-describedby"):
        described.append(also)
    attrs["aria-describedby"] = " ".join(described)
    _say_choices(bound)
    if bound.errors:
        attrs["aria-invalid"] = "true"
    return bound.as_widget(attrs=attrs)


def _say_choices(bound: BoundField) -> None:
    """Translate the labels of choices; values and names are unchanged."""
    widget = bound.field.widget
    choices = getattr(widget, "choices", None)
    if isinstance(choices, list):
        widget.choices = [
            (value, label if value == label else translated(label)) for value, label in choices
        ]
