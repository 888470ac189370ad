"""Jobs that are no gang become as many jobs as they have instances."""

from dataclasses import replace
from typing import Any

from hypothesis import given

from scheduling.core.jobspec import parse, parse_stored, split
from tests.strategies.jobspecs import job_documents

LOOSE: dict[str, Any] = {
    "name": "sweep",
    "virtual_cluster": "vision-a",
    "gang": False,
    "roles": {
        "ps": {"command": "true"},
        "worker": {
            "instances": 3,
            "devices": 2,
            "command": "true",
            "completion": {"min_failed": 2, "min_succeeded": 1},
        },
    },
}


def test_each_instance_is_a_job_that_knows_which_one_it_is() -> None:
    parts = split(parse(LOOSE), "g")

    assert [part.name for part in parts] == [
        "sweep ps-0",
        "sweep worker-0",
        "sweep worker-1",
        "sweep worker-2",
    ]
    assert [(part.part.rank, part.part.size) for part in parts if part.part] == [
        (0, 1),
        (0, 3),
        (1, 3),
        (2, 3),
    ]
    assert {part.part.group for part in parts if part.part} == {"g"}
    assert [list(part.roles) for part in parts] == [["ps"], ["worker"], ["worker"], ["worker"]]


def test_a_part_ends_with_its_instance() -> None:
    role = split(parse(LOOSE), "g")[1].roles["worker"]

    assert (role.instances, role.devices) == (1, 2)
    assert (role.completion.min_failed, role.completion.min_succeeded) == (1, -1)


def test_failures_that_were_to_be_overlooked_still_are() -> None:
    roles = {"worker": {**LOOSE["roles"]["worker"], "completion": {"min_failed": -1}}}

    parts = split(parse({**LOOSE, "roles": roles}), "g")

    assert {part.roles["worker"].completion.min_failed for part in parts} == {-1}


def test_a_single_instance_keeps_its_name() -> None:
    (part,) = split(parse({**LOOSE, "roles": {"worker": {"command": "true"}}}), "g")

    assert part.name == "sweep"


def test_long_names_are_cut_so_that_the_parts_still_differ() -> None:
    parts = split(parse({**LOOSE, "name": "n" * 63}), "g")

    assert {len(part.name) for part in parts} == {63}
    assert len({part.name for part in parts}) == 4


@given(document=job_documents())
def test_parts_are_valid_jobs_that_ask_for_the_same_in_all_and_are_split_no_further(
    document: dict[str, object],
) -> None:
    spec = parse(document)

    parts = split(spec, "g")

    if spec.gang:
        assert parts == (spec,)
    count = sum(role.instances for role in spec.roles.values())
    assert sum(sum(r.instances for r in part.roles.values()) for part in parts) == count
    for part in parts:
        assert split(part, "other") == (part,)
        kept = parse_stored(part.to_json())
        assert replace(kept, roles={}) == replace(part, roles={})
        if not part.secrets():
            assert kept == part
