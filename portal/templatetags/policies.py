"""Template tags of the policies of virtual clusters: ``{% load policies %}``."""

from collections.abc import Mapping
from typing import Any

from django import template
from django.forms import BoundField, Form

from portal.web.policy_fields import (
    bound_rules,
    policy_args_words,
    policy_summaries,
    policy_summary,
)
from scheduling.core.policies import stand_in

register = template.Library()


@register.filter
def policy_rules(form: Form) -> list[tuple[BoundField, list[BoundField]]]:
    """Render the check boxes of the rules around a policy, with their parameters."""
    return bound_rules(form)


@register.filter
def has_rules(form: Form) -> bool:
    """Return whether a rule around the policy is ticked, or invalid."""
    return any(
        box.value() or box.errors or any(bound.errors for bound in parameters)
        for box, parameters in bound_rules(form)
    )


@register.filter
def args_words(args: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the parameters of a policy and its rules as readable names and values."""
    return policy_args_words(args)


@register.filter
def summary_of(policy: str) -> str:
    """Return the summary line of a policy; empty for an unknown policy."""
    return policy_summary(policy)


@register.simple_tag
def every_policy() -> tuple[tuple[str, str], ...]:
    """Return the available policies, each with its summary."""
    return policy_summaries()


@register.filter
def policy_stand_in(args: Mapping[str, Any]) -> str:
    """Return the policy that decides if the policy with these parameters fails."""
    return stand_in(args)
