"""``tessera job-limits``: showing and setting limits of live jobs."""

from typing import Any

import pytest

from tests.support.prepared_portal import CommandLine, Portal

OF_CLUSTER: dict[str, Any] = {
    "per_person": 500, "per_tenant": None, "effective_per_person": 500,
    "effective_per_tenant": 30000, "source_per_person": "cluster",
    "source_per_tenant": "built-in",
    "tenants": [
        {"tenant": "vision", "per_person": None, "per_tenant": 900, "effective_per_person": 500,
         "effective_per_tenant": 900, "source_per_person": "cluster",
         "source_per_tenant": "tenant", "live": 12},
    ],
}  # fmt: skip
OF_TENANT: dict[str, Any] = {
    "per_person": None, "per_tenant": 900, "effective_per_person": 500,
    "effective_per_tenant": 900, "source_per_person": "cluster", "source_per_tenant": "tenant",
    "live": 12,
    "members": [
        {"id": 4, "username": "alice", "per_person": 20, "effective_per_person": 20,
         "source_per_person": "member", "live": 11},
    ],
}  # fmt: skip


@pytest.fixture(autouse=True)
def tenants(portal: Portal) -> None:
    listed = {"results": [{"id": 3, "name": "vision"}], "next_cursor": None}
    portal.answer("GET", "tenants/", listed)
    portal.answer("GET", "job-limits/cluster/", OF_CLUSTER)
    portal.answer("GET", "tenants/3/job-limits/", OF_TENANT)


def test_limits_are_shown_with_their_source_and_live_jobs(tessera: CommandLine) -> None:
    cluster = [line.split() for line in tessera("job-limits", "show").out.splitlines()]
    tenant = [line.split() for line in tessera("job-limits", "show", "vision").out.splitlines()]

    assert cluster[1:] == [
        ["cluster", "500", "30000", "(built-in)"],
        ["vision", "12", "500", "(cluster)", "900"],
    ]
    assert tenant[1:] == [
        ["all", "members", "12", "500", "(cluster)", "900"],
        ["alice", "11", "20"],
    ]


@pytest.mark.parametrize(
    ("words", "path", "expected"),
    [
        (
            ["--per-person", "7"],
            "job-limits/cluster/",
            ({"per_person": 7, "per_tenant": None}, "cluster: 500 per person"),
        ),
        (
            ["vision", "--per-person", "default"],
            "tenants/3/job-limits/",
            ({"per_person": None, "per_tenant": 900}, "vision: 500 per person"),
        ),
        (
            ["vision", "--user", "alice", "--per-person", "9"],
            "members/4/job-limit/",
            ({"per_person": 9}, "alice: 20 per person"),
        ),
    ],
)
def test_setting_one_limit_keeps_the_other(
    tessera: CommandLine,
    portal: Portal,
    words: list[str],
    path: str,
    expected: tuple[dict[str, Any], str],
) -> None:
    sent, said = expected
    answer = OF_TENANT["members"][0] if "members/" in path else OF_CLUSTER
    portal.answer("PUT", path, answer)

    ran = tessera("job-limits", "set", *words)

    assert (portal.asked[-1].method, portal.asked[-1].path) == ("PUT", f"/api/v1/{path}")
    assert portal.asked[-1].json == sent
    assert ran.out.strip() == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--per-person", "-1"], "not a valid limit"),
        (["--per-person", "many"], "not a valid limit"),
        ([], "nothing to set"),
        (["--user", "alice", "--per-person", "1"], "--user requires a tenant"),
        (["vision", "--user", "bob", "--per-person", "1"], "not a member of vision"),
        (["sales", "--per-person", "1"], "tenant 'sales' not found; known: vision"),
    ],
)
def test_limits_that_are_not_valid_are_refused_before_anything_is_sent(
    tessera: CommandLine, portal: Portal, words: list[str], said: str
) -> None:
    ran = tessera("job-limits", "set", *words)

    assert ran.status == 2
    assert said in ran.err
    assert all(asked.method == "GET" for asked in portal.asked)
