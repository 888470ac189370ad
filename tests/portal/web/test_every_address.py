"""Every address of the pages answers whoever types it, and never with an error of ours."""

import pytest
from django.test import Client
from django.urls import get_resolver

from portal.web import urls
from tests.support.addresses import addresses
from tests.support.cluster_pages import make_stage, sign_in

pytestmark = pytest.mark.django_db
FILLED = {"slug": "cordon", "int": "1", "str": "word"}
NOBODYS = {"slug": "no-such-verb", "int": "99999999999999999999", "str": "no-such-word"}


@pytest.mark.parametrize(("name", "words"), [("root", FILLED), ("alice", NOBODYS)])
def test_every_address_answers_who_types_it(
    client: Client, name: str, words: dict[str, str]
) -> None:
    make_stage()
    sign_in(client, name)

    paths = [path for path in addresses(urls.urlpatterns, words) if path != "/logout/"]

    assert len(paths) > 80
    for path in paths:
        assert get_resolver().resolve(path)
        assert client.get(path).status_code in {200, 302, 400, 403, 404, 405}, path
