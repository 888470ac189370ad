"""Requirements on GPUs and drivers: versions by number, and their way through the stored forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.jobspec import (
    Demand,
    InvalidJobSpecError,
    Requirements,
    demand,
    parse,
    parse_stored,
    strictest,
)
from scheduling.core.jobspec.requirements import version

NUMBERS = st.lists(st.integers(0, 12), min_size=1, max_size=4)
VERSIONS = NUMBERS.map(lambda numbers: ".".join(map(str, numbers)))
REQUIREMENTS = st.builds(
    Requirements,
    driver=VERSIONS | st.just(""),
    cuda=VERSIONS | st.just(""),
    device_memory=st.integers(0, 3).map(lambda n: n << 30),
)


def spec_of(**requires: object) -> dict[str, object]:
    role = {"command": "true", "requires": requires}
    return {"name": "a", "virtual_cluster": "vision-a", "roles": {"worker": role}}


@given(NUMBERS, NUMBERS)
def test_versions_compare_number_by_number(first: list[int], second: list[int]) -> None:
    depth = max(len(first), len(second))
    padded = [numbers + [0] * (depth - len(numbers)) for numbers in (first, second)]

    texts = [".".join(map(str, numbers)) for numbers in (first, second)]

    assert (version(texts[0]) < version(texts[1])) == (padded[0] < padded[1])


@pytest.mark.parametrize("text", ["", "unknown", "N/A"])
def test_a_version_without_a_number_is_below_all_others(text: str) -> None:
    assert version(text) == ()
    assert Requirements(driver="1").unmet_by(Requirements(driver=text)) == ["driver"]


@given(st.lists(REQUIREMENTS, min_size=1, max_size=4), REQUIREMENTS)
def test_the_strictest_requirements_fail_where_one_of_them_fails(
    several: list[Requirements], node: Requirements
) -> None:
    separately = {name for one in several for name in one.unmet_by(node)}

    assert set(strictest(several).unmet_by(node)) == separately


@given(REQUIREMENTS)
def test_requirements_survive_the_stored_specification_and_demand(wanted: Requirements) -> None:
    document = spec_of(**{**wanted.to_json(), "device_memory": wanted.device_memory or None})

    spec = parse(document)

    assert spec.roles["worker"].requires == wanted
    assert parse_stored(spec.to_json()).roles["worker"].requires == wanted
    stored = Demand.from_json(demand(spec).to_json())
    assert stored == demand(spec)
    assert stored.members[0].requires == wanted


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("cuda", 12.4, "number, but must be text"),
        ("driver", "latest", "Write a version as text"),
        ("driver", "1.2.3.4.5", "Write a version as text"),
        ("device_memory", "lots", "memory"),
        ("vram", "8GiB", "unknown"),
    ],
)
def test_malformed_requirements_are_refused(field: str, value: object, words: str) -> None:
    with pytest.raises(InvalidJobSpecError) as refused:
        parse(spec_of(**{field: value}))

    (error,) = refused.value.errors
    assert error.field == f"roles.worker.requires.{field}"
    assert words in f"{error.message} {error.remedy}"
