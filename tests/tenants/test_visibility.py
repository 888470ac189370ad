"""Whoever looks, with whatever token: never a row of a tenant that is not theirs."""

from contextlib import contextmanager

import pytest
from django.db import transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from tenants.models import ApiToken, AuditEntry, Membership, Tenant, User
from tenants.roles import Permission, Role, Scope
from tenants.selectors import audit_page, members_for, tenants_for, users_for, viewer_of
from tests.factories.tenants import NOW

pytestmark = pytest.mark.django_db

# Said again by hand, so that a slip in the tables of roles.py does not repeat itself here.
NEEDED_ROLE = {
    Permission.VIEW_TENANT: 1,
    Permission.VIEW_MEMBERS: 1,
    Permission.VIEW_JOBS: 1,
    Permission.SUBMIT_JOBS: 2,
    Permission.STOP_ANY_JOB: 3,
    Permission.MANAGE_MEMBERS: 3,
    Permission.READ_AUDIT: 3,
    Permission.EDIT_VC: 9,
}
NEEDED_SCOPES = {
    Permission.VIEW_TENANT: set(Scope),
    Permission.VIEW_MEMBERS: set(Scope),
    Permission.VIEW_JOBS: {"jobs:read", "jobs:write"},
    Permission.SUBMIT_JOBS: {"jobs:write"},
    Permission.STOP_ANY_JOB: {"jobs:write"},
    Permission.MANAGE_MEMBERS: {"tenant:admin"},
    Permission.READ_AUDIT: {"audit:read"},
    Permission.EDIT_VC: {"vc:admin"},
}
FROZEN = {Permission.SUBMIT_JOBS, Permission.MANAGE_MEMBERS}
RANK = {None: 0, Role.VIEWER: 1, Role.MEMBER: 2, Role.LEAD: 3}

roles = st.sampled_from([None, *Role])
tokens = st.none() | st.tuples(
    st.frozensets(st.sampled_from(Scope), min_size=1), st.none() | st.integers(0, 2)
)


@contextmanager
def rolled_back():
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def make_world(mine, others, archived):
    tenants = [
        Tenant.objects.create(
            name=f"t{number}",
            display_name=f"T{number}",
            position=number + 1,
            created_at=NOW,
            archived_at=NOW if number in archived else None,
        )
        for number in range(3)
    ]
    alice, bob = (User.objects.create(username=name) for name in ("alice", "bob"))
    for user, held in ((alice, mine), (bob, others)):
        for tenant, role in zip(tenants, held, strict=True):
            if role is not None:
                Membership.objects.create(tenant=tenant, user=user, role=role.value)
    for owner in [*tenants, None]:
        AuditEntry.objects.create(actor_name="x", action="x", object_type="x", tenant=owner)
    return tenants, alice


@settings(max_examples=60, deadline=None)
@given(
    mine=st.tuples(roles, roles, roles),
    others=st.tuples(roles, roles, roles),
    archived=st.frozensets(st.integers(0, 2)),
    is_admin=st.booleans(),
    drawn=tokens,
)
def test_nobody_ever_sees_a_foreign_row(mine, others, archived, is_admin, drawn):
    with rolled_back():
        tenants, alice = make_world(mine, others, archived)
        alice.is_superuser = is_admin
        scopes, bound = drawn or (None, None)
        token = None
        if scopes is not None:
            token = ApiToken.objects.create(
                user=alice,
                name="x",
                prefix="12345678",
                digest="x",
                scopes=sorted(scopes),
                tenant=None if bound is None else tenants[bound],
            )
        viewer = viewer_of(alice, token)

        def may(permission, number):
            return (
                (is_admin or RANK[mine[number]] >= NEEDED_ROLE[permission])
                and (scopes is None or bool(scopes & NEEDED_SCOPES[permission]))
                and (bound is None or bound == number)
                and not (number in archived and permission in FROZEN)
            )

        for permission in NEEDED_ROLE:
            expected = {t.pk for n, t in enumerate(tenants) if may(permission, n)}
            seen = Tenant.objects.visible_to(viewer, permission).values_list("pk", flat=True)
            assert set(seen) == expected, permission
            assert expected == {t.pk for t in tenants if viewer.can(permission, t.pk)}

        visible = {t.pk for n, t in enumerate(tenants) if may(Permission.VIEW_TENANT, n)}
        audited = {t.pk for n, t in enumerate(tenants) if may(Permission.READ_AUDIT, n)}
        is_unbound_admin = is_admin and bound is None
        if is_unbound_admin and (scopes is None or Scope.AUDIT_READ in scopes):
            audited.add(None)
        assert {t.pk for t in tenants_for(viewer)} == visible
        assert {m.tenant_id for m in members_for(viewer)} == {
            t.pk for n, t in enumerate(tenants) if t.pk in visible and (mine[n] or others[n])
        }
        assert {row.tenant_id for row in audit_page(viewer).rows} == audited
        assert set(viewer.tenant_names) <= visible
        assert set(viewer.roles) <= visible
        sees_bob = any(o and t.pk in visible for o, t in zip(others, tenants, strict=True))
        is_user_admin = is_unbound_admin and (scopes is None or Scope.TENANT_ADMIN in scopes)
        assert users_for(viewer).filter(username="bob").exists() == (sees_bob or is_user_admin)
        assert users_for(viewer).filter(username="alice").exists()
