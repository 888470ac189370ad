"""A part is made once for all who may see the same."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from portal.web import viewing
from portal.web.viewing import KEPT_FOR
from scheduling.clusters.models import Node
from tenants.roles import Role
from tests.conftest import PROJECT_ROOT
from tests.factories.tenants import make_tenant
from tests.support.clocks import choose_time
from tests.support.cluster_pages import make_stage, sign_in

pytestmark = pytest.mark.django_db
PART = {"HX-Request": "true"}
VERSION = "1700000000000001"


@pytest.fixture
def clock(monkeypatch):
    """An hour long past, so that a slow machine's seconds do not count."""
    clock = [datetime(2026, 3, 2, 9, 30, tzinfo=UTC)]
    choose_time(monkeypatch, lambda: clock[0])
    return clock


@pytest.fixture
def stage(clock):
    return make_stage(2)


def part(who: str, version: str = "", name: str = "live") -> str:
    client = sign_in(Client(), who)
    query = {"part": name, **({"v": version} if version else {})}
    return client.get("/cluster/", query, headers=PART).content.decode()


def test_who_names_a_version_shares_it_and_who_names_none_gets_what_is(stage) -> None:
    make_tenant("other", olga=Role.MEMBER, oskar=Role.MEMBER)
    first = part("olga", VERSION)

    Node.objects.update(state="down")

    assert part("oskar", VERSION) == first
    assert part("olga") != first
    assert part("olga", VERSION[:-1] + "2") == part("olga")
    assert part("olga", "x" * 20) == part("olga")


@pytest.mark.parametrize("jump", [KEPT_FOR, timedelta(days=1), -KEPT_FOR])
def test_what_was_shared_is_made_anew_after_some_seconds(stage, clock, jump) -> None:
    viewing._KNOWN.clear()
    version = f"1800000000{abs(int(jump.total_seconds())):08}{jump < timedelta(0):d}"
    first = part("root", version)
    Node.objects.update(state="down")
    assert part("root", version) == first

    clock[0] += jump

    assert part("root", version) == part("root") != first
    assert len(viewing._KNOWN) == 1


@pytest.mark.parametrize("name", ["live", "queue"])
def test_nobody_gets_what_somebody_with_other_rights_has_asked_for(stage, name) -> None:
    version = f"17000000000000{len(name)}9"
    make_tenant("other", olga=Role.MEMBER)
    people = ("root", "alice", "olga")
    alone = {who: part(who, name=name) for who in people}
    assert len(set(alone.values())) > 1

    assert {who: part(who, version, name) for who in people} == alone


def test_no_part_drops_the_last_news_of_its_topic():
    # htmx's throttle forgets what comes too early; a part that is named so is told of it later.
    pages = (PROJECT_ROOT / "templates").rglob("*.html")

    assert [page.name for page in pages if "throttle:" in page.read_text()] == []
