"""Django's admin lives under the same content policy as all other pages."""

import re

import pytest
from django.test import Client

from tests.factories.tenants import make_tenant, make_user

pytestmark = pytest.mark.django_db

LISTS = ("user", "tenant", "membership", "apitoken", "auditentry")
PAGES = (
    "/admin/",
    "/admin/tenants/user/add/",
    "/admin/tenants/user/{user}/change/",
    "/admin/tenants/user/{user}/password/",
    "/admin/tenants/tenant/{tenant}/change/",
    *(f"/admin/tenants/{name}/" for name in LISTS),
)


@pytest.mark.parametrize("page", PAGES)
def test_nothing_of_it_needs_an_exception(client: Client, page: str) -> None:
    root, vision = make_user("root", is_cluster_admin=True), make_tenant("vision")
    client.force_login(root, "django.contrib.auth.backends.ModelBackend")

    response = client.get(page.format(user=root.pk, tenant=vision.pk))
    html = response.content.decode()

    assert response.status_code == 200
    assert "script-src 'self'" in response.headers["Content-Security-Policy"]
    assert not re.search(r"<style|<[^>]* style=|<[^>]* on[a-z]+=", html)
    assert not re.search(r"<script(?![^>]*(src=|application/json))", html)
