"""Form fields for the parameters of a policy, built from its declaration."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from django import forms
from django.core.exceptions import ValidationError

from scheduling.core.messages import sentence
from scheduling.core.policies import COMBINATORS, POLICIES, WRAP, Parameter, parameters_of

PREFIX: Final = "arg-"
AROUND: Final = "with-"
"""Prefix of the fields of policy rules: a checkbox for each rule, and its parameters."""


def policy_names() -> tuple[str, ...]:
    return tuple(sorted(POLICIES))


def policy_summary(policy: str) -> str:
    """Return the summary line of a policy."""
    factory = POLICIES.get(policy)
    return (factory.__doc__ or "").strip().partition("\n")[0].replace("``", "") if factory else ""


def policy_summaries() -> tuple[tuple[str, str], ...]:
    """Return the available policies, each with its summary."""
    return tuple((name, policy_summary(name)) for name in policy_names())


def add_policy_fields(form: forms.Form, policy: str, args: Mapping[str, Any]) -> None:
    """Add a field for each parameter of ``policy`` to ``form``, with its value or its default.

    Then a check box for each policy rule, with the rule's parameters.
    """
    for parameter in _parameters(policy):
        form.fields[f"{PREFIX}{parameter.name}"] = _field(parameter, args.get(parameter.name))
    if policy not in POLICIES:
        return
    around = args.get(WRAP, {})
    for rule, combinator in COMBINATORS.items():
        form.fields[f"{AROUND}{rule}"] = forms.BooleanField(
            label=rule, required=False, initial=rule in around, help_text=combinator.summary
        )
        for parameter in parameters_of(combinator):
            value = around.get(rule, {}).get(parameter.name)
            form.fields[_name_around(rule, parameter)] = _field(parameter, value)


def policy_args_of(form: forms.Form, policy: str) -> dict[str, Any]:
    """Return the parameters in a valid form that differ from their defaults."""
    found = {}
    for parameter in _parameters(policy):
        value = form.cleaned_data.get(f"{PREFIX}{parameter.name}")
        if value is not None and value not in ("", parameter.default):
            found[parameter.name] = value
    around = {
        rule: _set_around(form, rule, combinator)
        for rule, combinator in COMBINATORS.items()
        if form.cleaned_data.get(f"{AROUND}{rule}")
    }
    return {**found, WRAP: around} if around else found


def policy_query(args: Mapping[str, Any]) -> str:
    """Return the parameters as the query of an address; ``policy_args_asked`` reads it."""
    found = {f"{PREFIX}{name}": value for name, value in args.items() if name != WRAP}
    for rule, given in args.get(WRAP, {}).items():
        found[f"{AROUND}{rule}"] = "on"
        found.update({f"{AROUND}{rule}-{name}": value for name, value in given.items()})
    return urlencode(found)


def policy_args_asked(policy: str, query: Mapping[str, Any]) -> dict[str, Any]:
    """Read parameters of ``policy`` from the query of an address; invalid ones are omitted."""
    found = _asked(query, {f"{PREFIX}{one.name}": one for one in _parameters(policy)})
    around = {
        rule: _asked(query, {_name_around(rule, one): one for one in parameters_of(combinator)})
        for rule, combinator in COMBINATORS.items()
        if query.get(f"{AROUND}{rule}")
    }
    return {**found, WRAP: around} if around else found


def policy_args_words(args: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return parameters as readable names and values, with the policy rules one by one."""
    own = [(name, str(value)) for name, value in args.items() if name != WRAP]
    return own + [
        (rule, ", ".join(f"{name} {value}" for name, value in given.items()))
        for rule, given in args.get(WRAP, {}).items()
    ]


def policy_args_text(args: Mapping[str, Any]) -> str:
    """Return parameters in one line."""
    return ", ".join(f"{name} {value}".strip() for name, value in policy_args_words(args))


def bound_policy_fields(form: forms.Form) -> list[forms.BoundField]:
    """Return the bound fields of the parameters, for the template."""
    return [form[name] for name in form.fields if name.startswith(PREFIX)]


def bound_rules(form: forms.Form) -> list[tuple[forms.BoundField, list[forms.BoundField]]]:
    """Return the check box of each policy rule with the fields of its parameters."""
    return [
        (
            form[f"{AROUND}{rule}"],
            [form[_name_around(rule, one)] for one in parameters_of(combinator)],
        )
        for rule, combinator in COMBINATORS.items()
        if f"{AROUND}{rule}" in form.fields
    ]


def _name_around(rule: str, parameter: Parameter) -> str:
    return f"{AROUND}{rule}-{parameter.name}"


def _set_around(form: forms.Form, rule: str, combinator: type) -> dict[str, Any]:
    """Return the parameters of a rule in a valid form that differ from their defaults."""
    values = {
        one.name: (form.cleaned_data.get(_name_around(rule, one)), one.default)
        for one in parameters_of(combinator)
    }
    return {
        name: value
        for name, (value, default) in values.items()
        if value is not None and value not in ("", default)
    }


def _asked(query: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    found = {}
    for field_name, parameter in parameters.items():
        text = query.get(field_name, "")
        if text:
            try:
                found[parameter.name] = _field(parameter, None).clean(text)
            except ValidationError:
                continue
    return found


def _parameters(policy: str) -> tuple[Parameter, ...]:
    factory = POLICIES.get(policy)
    return parameters_of(factory) if factory else ()


def _field(parameter: Parameter, value: object) -> forms.Field:
    """Build a field of the parameter's type, with its bounds and its help text."""
    shared: dict[str, Any] = {
        "label": parameter.name.replace("_", " ").capitalize(),
        "required": False,
        "initial": parameter.default if value is None else value,
        "help_text": _hint(parameter),
    }
    if parameter.kind is bool:
        return forms.BooleanField(**shared)
    if parameter.choices:
        return forms.ChoiceField(**shared, choices=[(word, word) for word in parameter.choices])
    if parameter.kind is int:
        low, high = _whole(parameter.low), _whole(parameter.high)
        return forms.IntegerField(**shared, min_value=low, max_value=high)
    if parameter.kind is float:
        return forms.FloatField(
            **shared,
            min_value=parameter.low,
            max_value=parameter.high,
            widget=forms.NumberInput(attrs={"step": "any"}),
        )
    reads = parameter.reads
    return forms.CharField(
        **shared, validators=[partial(_require_readable, reads)] if reads else []
    )


def _require_readable(reads: Callable[[str], object], value: str) -> None:
    try:
        reads(value)
    except ValueError as error:
        raise forms.ValidationError(sentence("use-what", what=str(error))) from None


def _hint(parameter: Parameter) -> str:
    if parameter.kind is bool or parameter.default == "":
        return parameter.text
    default = str(parameter.default)
    if parameter.choices:
        return sentence("hint-default", text=parameter.text, default=default)
    bounds = parameter.range_text
    if not parameter.text:
        return sentence("hint-default", text=bounds, default=default)
    return sentence("hint-bounds", text=parameter.text, bounds=bounds, default=default)


def _whole(bound: float | None) -> int | None:
    return None if bound is None else int(bound)
