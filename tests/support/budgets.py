"""How long code in this process may think before it makes do with less.

On a slow machine a test would see an answer that is not whole. So all tests have much time, but
those of the budgets themselves, which set their own.
"""

from importlib import import_module

import pytest

PATIENT_SECONDS = 100.0
BUDGETS = {
    "scheduling.rounds.snapshot.reading": ("POLICY_SECONDS",),
    "scheduling.estimates.services.estimates": (
        "SECONDS",
        "STEP_SECONDS",
        "NEW_SECONDS",
        "NEW_STEP_SECONDS",
        "POLICY_SECONDS",
    ),
    "scheduling.estimates.services.run_times": ("POLICY_SECONDS",),
    "scheduling.estimates.services.submit_plans": (
        "ALTERNATIVES_SECONDS",
        "POLICY_SECONDS",
        "STARTS_SECONDS",
    ),
    "scheduling.estimates.services.explanations": ("SECONDS", "POLICY_SECONDS"),
}
GENEROUS = {
    ("scheduling.what_if.services.promises", "AUDIT_SECONDS"),
    ("scheduling.what_if.services.what_if", "ANSWER_SECONDS"),
}
"""Minutes, which no test needs."""


def be_patient(patch: pytest.MonkeyPatch) -> None:
    """Give every budget much time; NumPy, which some bring with them, is loaded before."""
    for name, budgets in BUDGETS.items():
        module = import_module(name)
        for budget in budgets:
            patch.setattr(module, budget, PATIENT_SECONDS)
