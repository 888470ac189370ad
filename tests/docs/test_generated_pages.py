"""Pages that are generated, and lists in the docs that must not fall behind the code."""

from pathlib import Path

import pytest
from django.core.management import get_commands

from portal.settings.environment import KNOWN
from scheduling.core.lifecycle import JobState
from scheduling.core.policies import POLICIES
from scheduling.core.statedocs import WORDS, page
from scheduling.enums import JobStateChoice
from tessera.reasons import ReasonCode

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
OUR_ROOMS = {"portal", "scheduling", "tenants", "workers"}


def test_the_page_of_job_states_is_the_generated_one():
    assert (DOCS / "job-states.md").read_text() == page()


def test_every_state_is_described():
    assert set(WORDS) == set(JobState)
    assert set(JobStateChoice.values) == {state.value for state in JobState}


def test_the_table_of_reasons_is_the_generated_one():
    assert ReasonCode.table() in (DOCS / "reasons.md").read_text()


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_setting_is_in_the_operations_page(name):
    assert f"`{name}`" in (DOCS / "operations.md").read_text()


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_is_in_the_list_of_policies(name):
    _, _, rest = (DOCS / "policies.md").read_text().partition("## List of policies\n")
    table, _, _ = rest.partition("\n## ")

    assert f"| `{name}` |" in table


def test_every_command_of_ours_is_in_the_operations_page():
    text = (DOCS / "operations.md").read_text()
    ours = [name for name, room in get_commands().items() if room in OUR_ROOMS]

    assert [name for name in ours if f"`manage.py {name}" not in text] == []


def test_the_job_states_are_those_of_the_contract(shared_dir):
    text = (shared_dir / "contracts" / "README.md").read_text()
    listed = text.split("Job states: ")[1].split(".")[0].split(", ")
    codes = text.split("Reason codes: ")[1].split(".\n")[0].replace("\n", " ")

    assert [state.strip() for state in listed] == [state.value for state in JobState]
    assert {code.strip() for code in codes.split(",")} <= {code.value for code in ReasonCode}
