"""Time budgets of code in this process.

On a slow machine, a test could get a partial result. Therefore all tests have large budgets,
except the tests of the budgets, which set their own.
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
    "scheduling.estimates.services.fragmentation": ("MOVE_SECONDS", "POLICY_SECONDS"),
    "scheduling.estimates.services.moves": ("POLICY_SECONDS",),
    "scheduling.estimates.services.shares": ("SECONDS",),
}
GENEROUS = {
    ("scheduling.what_if.services.promises", "AUDIT_SECONDS"),
    ("scheduling.what_if.services.what_if", "ANSWER_SECONDS"),
}
"""Budgets in minutes, which no test exhausts."""


def be_patient(patch: pytest.MonkeyPatch) -> None:
    """Enlarge all budgets; import NumPy first, since some modules with budgets need it."""
    for name, budgets in BUDGETS.items():
        module = import_module(name)
        for budget in budgets:
            patch.setattr(module, budget, PATIENT_SECONDS)
