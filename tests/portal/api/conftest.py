"""A small cluster and clients of its API, each signed in as somebody."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from rest_framework.test import APIClient

from tenants.models import Tenant, User
from tenants.roles import Role, Scope
from tests.factories import cluster
from tests.factories.tenants import make_tenant, make_token, make_user

ApiFor = Callable[..., APIClient]


@dataclass(frozen=True)
class World:
    """Two tenants with a virtual cluster each on three nodes of eight devices."""

    vision: Tenant
    language: Tenant


@pytest.fixture
def world(db: None) -> World:
    cluster.make_cluster(3)
    cluster.make_priority_classes()
    vision = make_tenant("vision", alice=Role.MEMBER, lena=Role.LEAD, vera=Role.VIEWER)
    language = make_tenant("language", bob=Role.MEMBER)
    cluster.make_virtual_cluster("vision-a", vision)
    cluster.make_virtual_cluster("language-a", language)
    make_user("root", is_cluster_admin=True)
    return World(vision=vision, language=language)


@pytest.fixture
def api(world: World) -> ApiFor:
    """``api("alice")`` is alice's browser, ``api("alice", Scope.JOBS_READ)`` her script."""

    def client(username: str, *scopes: Scope, **options: Any) -> APIClient:
        user = User.objects.get(username=username)
        made = APIClient(raise_request_exception=True)
        if scopes:
            key = make_token(user, *scopes, **options).key
            made.credentials(HTTP_AUTHORIZATION=f"Token {key}")
        else:
            made.force_login(user, "django.contrib.auth.backends.ModelBackend")
        return made

    return client


def problem_of(response: Any, status: int) -> dict[str, Any]:
    """The problem document of a refusal, after a look at its shape."""
    body: dict[str, Any] = response.json()
    assert response.status_code == status, body
    assert response.headers["Content-Type"] == "application/problem+json"
    assert {"type", "title", "status", "code", "errors"} <= body.keys()
    assert body["status"] == status
    for fault in body["errors"]:
        assert {"field", "value", "message", "remedy"} <= fault.keys()
    return body


@pytest.fixture
def problem() -> Callable[[Any, int], dict[str, Any]]:
    return problem_of
