"""Roles, scopes and the viewer's answers, without a database."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.errors import ForbiddenError, NotFoundError
from tenants.roles import (
    CLUSTER_ONLY,
    EVERYBODY,
    FROZEN_BY_ARCHIVE,
    PERMISSIONS,
    SCOPE_NEEDS,
    SCOPES,
    Permission,
    Role,
    Scope,
    grantable_scopes,
    role_allows,
)
from tenants.viewers import ANOTHER_TENANT, Viewer

P = Permission


def viewer(**changes: object) -> Viewer:
    facts = {"user_id": 1, "username": "alice", "tenant_names": {1: "vision", 2: "language"}}
    return Viewer(**(facts | changes))  # type: ignore[arg-type]


viewers = st.builds(
    viewer,
    is_cluster_admin=st.booleans(),
    roles=st.dictionaries(st.integers(1, 3), st.sampled_from(Role)),
    archived_ids=st.frozensets(st.integers(1, 3)),
    scopes=st.none() | st.frozensets(st.sampled_from(Scope)),
    bound_tenant_id=st.none() | st.integers(1, 3),
)


def test_each_role_includes_the_one_before_it():
    for lesser, greater in pairwise(Role):
        assert PERMISSIONS[lesser] < PERMISSIONS[greater]


def test_every_permission_has_its_scopes_and_somebody_who_holds_it():
    assert set(SCOPES) == set(Permission)
    assert set(SCOPE_NEEDS) == set(Scope)
    assert PERMISSIONS[Role.LEAD] | EVERYBODY | CLUSTER_ONLY == set(Permission)
    assert not CLUSTER_ONLY & (PERMISSIONS[Role.LEAD] | EVERYBODY)


def test_no_member_of_a_tenant_may_touch_nodes_or_virtual_clusters():
    for permission in (P.MANAGE_NODES, P.EDIT_VC, P.MANAGE_TENANTS, P.GRANT_ADMIN):
        assert not any(role_allows(role, permission) for role in Role)


def test_a_stranger_is_allowed_only_what_everybody_is():
    assert {p for p in Permission if role_allows(None, p)} == EVERYBODY


@pytest.mark.parametrize(
    ("role", "scopes"),
    [
        (Role.VIEWER, {"jobs:read"}),
        (Role.MEMBER, {"jobs:read", "jobs:write"}),
        (Role.LEAD, {"jobs:read", "jobs:write", "audit:read", "tenant:admin"}),
    ],
)
def test_a_role_may_hand_out_the_scopes_it_could_use(role, scopes):
    assert grantable_scopes(is_cluster_admin=False, roles=[role]) == scopes


def test_an_admin_may_hand_out_every_scope_and_a_stranger_none():
    assert grantable_scopes(is_cluster_admin=True, roles=[]) == set(Scope)
    assert grantable_scopes(is_cluster_admin=False, roles=[]) == set()


@given(who=viewers, permission=st.sampled_from(Permission))
def test_the_set_of_tenants_says_the_same_as_asking_for_each(who, permission):
    ids = who.tenant_ids(permission)

    for tenant_id in (1, 2, 3):
        if tenant_id in who.tenant_names or tenant_id in who.roles:
            assert (ids is None or tenant_id in ids) == who.can(permission, tenant_id)


@given(who=viewers, permission=st.sampled_from(Permission))
def test_a_bound_token_reaches_its_tenant_only(who, permission):
    if who.bound_tenant_id is None:
        return

    ids = who.tenant_ids(permission)

    assert ids is not None
    assert ids <= {who.bound_tenant_id}
    assert not who.can(permission) or permission in EVERYBODY
    for tenant_id in {1, 2, 3} - {who.bound_tenant_id}:
        assert who.name_of(tenant_id) == ANOTHER_TENANT
        assert who.role_in(tenant_id) is None


@given(who=viewers, permission=st.sampled_from(Permission), tenant_id=st.integers(1, 3))
def test_a_token_never_allows_more_than_its_owner_may(who, permission, tenant_id):
    owner = viewer(
        is_cluster_admin=who.is_cluster_admin, roles=who.roles, archived_ids=who.archived_ids
    )

    assert owner.can(permission, tenant_id) or not who.can(permission, tenant_id)
    assert owner.can(permission) or not who.can(permission)


def test_a_token_makes_neither_tokens_nor_admins():
    who = viewer(is_cluster_admin=True, scopes=frozenset(Scope))

    assert not who.can(P.ISSUE_TOKENS)
    assert not who.can(P.GRANT_ADMIN)
    assert who.tenant_ids(P.ISSUE_TOKENS) == frozenset()


def test_an_archived_tenant_takes_no_work_even_from_an_admin_and_can_still_be_seen():
    admin = viewer(is_cluster_admin=True, archived_ids=frozenset({1}))

    assert not any(admin.can(permission, 1) for permission in FROZEN_BY_ARCHIVE)
    assert admin.tenant_ids(P.SUBMIT_JOBS) == frozenset({2})
    assert admin.can(P.VIEW_JOBS, 1)
    assert admin.can(P.STOP_ANY_JOB, 1)


def test_members_stop_their_own_jobs_and_leads_anybodys():
    member = viewer(roles={1: Role.MEMBER})
    lead = viewer(roles={1: Role.LEAD})
    looker = viewer(roles={1: Role.VIEWER})

    assert member.can_stop(1, 1)
    assert not member.can_stop(1, 2)
    assert not member.can_stop(1, None)
    assert lead.can_stop(1, 2)
    assert not looker.can_stop(1, 1)


def test_a_refusal_tells_a_stranger_nothing_and_a_member_what_to_do():
    with pytest.raises(NotFoundError):
        viewer().require(P.MANAGE_MEMBERS, 1)
    with pytest.raises(ForbiddenError) as refusal:
        viewer(roles={1: Role.MEMBER}).require(P.MANAGE_MEMBERS, 1)

    assert refusal.value.remedy == "Ask a lead of the tenant."


def test_a_viewer_cannot_be_widened_after_it_was_made():
    roles = {1: Role.VIEWER}
    who = viewer(roles=roles)

    roles[2] = Role.LEAD

    assert not who.can(P.VIEW_JOBS, 2)
    with pytest.raises(TypeError):
        who.roles[2] = Role.LEAD  # type: ignore[index]


def test_menus_ask_whether_a_verb_is_allowed_anywhere():
    lead = viewer(roles={2: Role.LEAD})

    assert lead.can_somewhere(P.MANAGE_MEMBERS)
    assert not lead.can_somewhere(P.MANAGE_NODES)


def test_a_token_is_asked_for_only_where_another_one_would_help():
    script: dict[str, Any] = {
        "scopes": frozenset({Scope.JOBS_READ}),
        "username": "ada",
        "user_id": 1,
    }
    admin = Viewer(is_cluster_admin=True, **script)
    member = Viewer(roles={7: Role.LEAD}, tenant_names={7: "vision"}, **script)

    with pytest.raises(ForbiddenError) as of_admin:
        admin.require(Permission.MANAGE_NODES, what="nodes")
    with pytest.raises(ForbiddenError) as of_member:
        member.require(Permission.MANAGE_NODES, what="nodes")

    assert of_admin.value.remedy.startswith("Use a token")
    assert of_member.value.remedy == "Ask a cluster admin."
