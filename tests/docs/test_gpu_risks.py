"""The pages about GPUs name tests that exist, and the same gaps as the tests on GPUs."""

import re
from pathlib import Path

from tests.gpu.not_measured import NOT_MEASURED

ROOT = Path(__file__).parents[2]
RISKS = (ROOT / "docs" / "gpu-risks.md").read_text()
ROWS = re.findall(r"^\| (\d+) \| (.*?) \| (.*?) \| (.*) \|$", RISKS, re.MULTILINE)


def test_each_of_the_24_risks_has_a_state_and_a_test_or_a_reason() -> None:
    assert [int(number) for number, *_ in ROWS] == list(range(1, 25))
    for number, _, state, tests in ROWS:
        assert state.startswith(("solved", "partly: ", "not solved")), number
        assert "::" in tests or state.startswith("not solved"), number


def test_the_tests_exist() -> None:
    named = re.findall(r"`([\w/.]+)::(\w+)`", RISKS)

    assert len(named) >= 30
    for path, name in named:
        text = (ROOT / "tests" / path).read_text()
        assert f"def {name}(" in text, f"{path}::{name}"


def test_the_page_lists_what_is_not_measured() -> None:
    page = (ROOT / "docs" / "gpu-machine.md").read_text()

    assert [item for item in NOT_MEASURED if f"- {item}\n" not in page] == []
