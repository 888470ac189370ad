"""Valid people, tenants, members and tokens for tests, made through the services."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import count

from tenants.models import Membership, Tenant, User
from tenants.roles import Role, Scope
from tenants.selectors import viewer_of
from tenants.services import IssuedToken, add_member, create_tenant, create_user, issue_token
from tenants.viewers import Viewer

NOW = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
PASSWORD = "correct horse battery"
SYSTEM = Viewer.system("tests")

_numbers = count(1)


def make_user(username: str = "", *, is_cluster_admin: bool = False) -> User:
    """A person with ``PASSWORD``; without a name one that nobody else has."""
    return create_user(
        viewer=SYSTEM,
        username=username or f"user{next(_numbers)}",
        password=PASSWORD,
        is_cluster_admin=is_cluster_admin,
    )


def make_tenant(name: str = "", **members: Role) -> Tenant:
    """A tenant; ``make_tenant("vision", alice=Role.LEAD)`` makes or finds its members too."""
    tenant = create_tenant(viewer=SYSTEM, name=name or f"tenant{next(_numbers)}")
    for username, role in members.items():
        user = User.objects.filter(username=username).first() or make_user(username)
        make_member(tenant, user, role)
    return tenant


def make_member(
    tenant: Tenant, user: User, role: Role = Role.MEMBER, *, max_devices: int | None = None
) -> Membership:
    """A person in a tenant."""
    return add_member(
        viewer=SYSTEM,
        tenant_id=tenant.pk,
        username=user.username,
        role=role,
        max_devices=max_devices,
    )


def make_viewer(username: str) -> Viewer:
    """The viewer that an existing person is when signed in."""
    return viewer_of(User.objects.get(username=username))


def make_token(
    user: User,
    *scopes: Scope,
    tenant: Tenant | None = None,
    expires_in: timedelta | None = None,
    now: datetime = NOW,
) -> IssuedToken:
    """A token of a person, by default with everything the roles allow of reading jobs."""
    wanted: Iterable[Scope] = scopes or (Scope.JOBS_READ,)
    return issue_token(
        viewer=viewer_of(user),
        name="for tests",
        scopes=wanted,
        tenant_id=tenant.pk if tenant else None,
        expires_in=expires_in,
        now=now,
    )
