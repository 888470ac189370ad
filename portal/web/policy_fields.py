"""Form fields for the parameters of a policy, made from what the policy says it takes."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, Final

from django import forms

from scheduling.core.policies import POLICIES

PREFIX: Final = "arg-"


def policy_names() -> tuple[str, ...]:
    """The policies that can be chosen."""
    return tuple(sorted(POLICIES))


def policy_summary(policy: str) -> str:
    """The first line of what a policy says of itself."""
    factory = POLICIES.get(policy)
    return (factory.__doc__ or "").strip().partition("\n")[0] if factory else ""


def add_policy_fields(form: forms.Form, policy: str, args: Mapping[str, Any]) -> None:
    """Add a field for each parameter of ``policy`` to ``form``, with its value or its default."""
    for parameter in _parameters(policy):
        form.fields[f"{PREFIX}{parameter.name}"] = _field(parameter, args.get(parameter.name))


def policy_args_of(form: forms.Form, policy: str) -> dict[str, Any]:
    """The parameters in a valid form that differ from their defaults, or have none."""
    found = {}
    for parameter in _parameters(policy):
        value = form.cleaned_data.get(f"{PREFIX}{parameter.name}")
        if value is None or value == "":
            continue
        if parameter.default is MISSING or value != parameter.default:
            found[parameter.name] = value
    return found


def bound_policy_fields(form: forms.Form) -> list[forms.BoundField]:
    """The fields of the parameters, for the template."""
    return [form[name] for name in form.fields if name.startswith(PREFIX)]


def _parameters(policy: str) -> tuple["Field[Any]", ...]:
    factory = POLICIES.get(policy)
    return fields(factory) if factory else ()  # type: ignore[arg-type] # policies are dataclasses


def _field(parameter: "Field[Any]", value: object) -> forms.Field:
    default = None if parameter.default is MISSING else parameter.default
    label = parameter.name.replace("_", " ").capitalize()
    initial = default if value is None else value
    if parameter.type is bool:
        return forms.BooleanField(label=label, required=False, initial=initial)
    hint = "" if default is None else f"{default} unless set"
    if parameter.type is int:
        return forms.IntegerField(label=label, required=False, initial=initial, help_text=hint)
    if parameter.type is float:
        return forms.FloatField(label=label, required=False, initial=initial, help_text=hint)
    return forms.CharField(label=label, required=False, initial=initial, help_text=hint)
