"""Whatever happens, live pages show what a process would that has kept nothing of before.

Each part is asked for as an open page asks: after the news that the change has sent, for the
version that the page has been told of, by people who may know different things, in both languages.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from portal.live.access import overview_group
from portal.web.viewing import KEPT_FOR
from scheduling.clusters.models import Node
from scheduling.clusters.services.cluster_edits import ChangeVc
from scheduling.clusters.services.node_holds import cordon_node, set_device_health, uncordon_node
from scheduling.clusters.services.reconfiguration import edit_virtual_cluster
from scheduling.common.on_commit import node_has_changed
from scheduling.jobs.models import Job
from scheduling.jobs.queries.submit_context import read_submit_context
from scheduling.jobs.services.amendments import amend_job
from scheduling.runs.models import Member
from scheduling.runs.services import attempts
from scheduling.runs.services.stopping import stop_job
from tenants.errors import DomainError
from tenants.models import Membership, Tenant, User
from tenants.roles import Role
from tenants.services import remove_member, update_tenant
from tests.factories.scheduling import NOW, end, make_two_tenants, run_round, submit
from tests.factories.tenants import make_member, make_user, make_viewer
from tests.support.clocks import choose_time
from tests.support.fresh_process import fresh_process
from tests.support.heard_news import News, heard_news
from workers.models import NodeTelemetry

pytestmark = pytest.mark.django_db

READERS = ("root", "alice", "bob", "dora", "carol")
"""An admin, one of vision, one of language, one who comes to both and goes, and one of none."""

VERSIONS = count(1_700_000_000_000_000)
LANGUAGES = ("en", "zh-hans")
HX = {"HX-Request": "true"}
TABLE = {"HX-Current-URL": "http://testserver/?view=table&colour=job"}
PAGES: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "map": ("/", {"part": "live"}, HX),
    "table": ("/", {"part": "live"}, {**HX, **TABLE}),
    "queue": ("/", {"part": "queue"}, HX),
    "nodes": ("/nodes/", {}, HX),
    "virtual clusters": ("/virtual-clusters/", {}, HX),
    "jobs": ("/jobs/", {}, HX),
    "cluster": ("/api/v1/cluster/", {}, {}),
}
MORE = [page for page in PAGES if page not in {"map", "queue"}]
STAYS = 4
SECRETS = {"vision": ("vision-a", "v-job", "alice"), "language": ("language-a", "l-job", "bob")}
"""What only those of a tenant may read: its virtual cluster, its jobs, whose they are."""


class Pages(RuleBasedStateMachine):
    """A cluster that two tenants share, with open pages."""

    news: News
    clock: list[Any]
    clients: dict[str, Client]

    def __init__(self) -> None:
        super().__init__()
        self.atomic = transaction.atomic()
        self.atomic.__enter__()
        self.version, self.heard = next(VERSIONS), 0
        self.clock[0] = NOW
        self.viewer = make_viewer("root")
        self.dora = User.objects.get(username="dora")
        self.number = 0
        self.turn = 0
        self.is_told = True

    def teardown(self) -> None:
        """Nothing of it stays."""
        transaction.set_rollback(True)
        self.atomic.__exit__(None, None, None)

    # Changes that pages are told of

    @rule(
        who=st.sampled_from(["alice", "bob"]),
        devices=st.sampled_from([1, 4, 8]),
        borrows=st.booleans(),
    )
    def submit(self, who: str, devices: int, borrows: bool) -> None:
        self.number += 1
        name = f"{'v' if who == 'alice' else 'l'}-job-{self.number}"
        more = {"class": "opportunistic"} if borrows else {}
        with suppress(DomainError):  # its virtual cluster may be promised nothing
            submit(who, devices, name=name, **more)

    @rule()
    def round(self) -> None:
        run_round(self.clock[0])
        now = self.clock[0]
        waiting = list(Member.objects.filter(step="waiting").values_list("id", flat=True))
        attempts.mark_preparing(member_ids=waiting, now=now)
        for pk in waiting:
            attempts.mark_prepared(member_id=pk, now=now)
            attempts.mark_running(member_id=pk, pid=1, boot_id="", started_at=now, now=now)

    @rule(pick=st.integers(0, 5), code=st.sampled_from([0, 1]))
    def end(self, pick: int, code: int) -> None:
        for job in _picked(Job.objects.unscoped().filter(state="running"), pick):
            end(job, code, at=self.clock[0])

    @rule(pick=st.integers(0, 5))
    def stop(self, pick: int) -> None:
        for job in _picked(Job.objects.unscoped().filter(state="queued"), pick):
            stop_job(job=job, viewer=self.viewer, now=self.clock[0])

    @rule(pick=st.integers(0, 5), priority=st.sampled_from(["prod", "test"]))
    def give_another_priority(self, pick: int, priority: str) -> None:
        held = Job.objects.unscoped().filter(state="queued").exclude(job_class="opportunistic")
        for job in _picked(held, pick):
            viewer = self.viewer
            submit_context = read_submit_context(viewer=viewer, images_ignored=False)
            changes = {"priority": priority}
            with suppress(DomainError):
                amend_job(
                    job=job,
                    changes=changes,
                    viewer=viewer,
                    submit_context=submit_context,
                    now=self.clock[0],
                )

    @rule(pick=st.integers(0, 1))
    def cordon(self, pick: int) -> None:
        for node in _picked(Node.objects.all(), pick):
            act: Callable[..., Any] = uncordon_node if node.held else cordon_node
            act(viewer=self.viewer, node_id=node.pk, reason="repair", now=self.clock[0])

    @rule(pick=st.integers(0, 1), state=st.sampled_from(["down", "suspect", "ready"]))
    def lose(self, pick: int, state: str) -> None:
        for node in _picked(Node.objects.all(), pick):
            Node.objects.filter(pk=node.pk).update(state=state, state_since=self.clock[0])
            node_has_changed(node.pk)

    @rule(pick=st.integers(0, 1), index=st.integers(0, 7), healthy=st.booleans())
    def break_device(self, pick: int, index: int, healthy: bool) -> None:
        for node in _picked(Node.objects.all(), pick):
            set_device_health(
                viewer=self.viewer,
                node_id=node.pk,
                index=index,
                healthy=healthy,
                reason="" if healthy else "it is hot",
                now=self.clock[0],
            )

    @rule(name=st.sampled_from(["vision-a", "language-a"]), cells=st.integers(0, 1))
    def reconfigure(self, name: str, cells: int) -> None:
        share = [{"chain": "a-node", "level": "a-node", "count": cells}] if cells else []
        edit = ChangeVc(
            virtual_cluster=name, values={"policy": "fair" if cells else "fifo"}, cells=share
        )
        with suppress(DomainError):  # what is guaranteed to jobs that run stays
            edit_virtual_cluster(viewer=self.viewer, edit=edit, now=self.clock[0])

    # What no open page is told of

    @rule(tenant=st.sampled_from(["vision", "language"]))
    def come_or_go(self, tenant: str) -> None:
        home = Tenant.objects.unscoped().get(name=tenant)
        rows = Membership.objects.unscoped().filter(tenant=home, user=self.dora)
        member = rows.first()
        if member is None:
            make_member(home, self.dora, Role.MEMBER)
        else:
            remove_member(viewer=self.viewer, membership_id=member.pk)

    @rule(tenant=st.sampled_from(["vision", "language"]), word=st.sampled_from(["One", "Two"]))
    def rename(self, tenant: str, word: str) -> None:
        home = Tenant.objects.unscoped().get(name=tenant)
        update_tenant(viewer=self.viewer, tenant_id=home.pk, display_name=word)
        self.is_told = False

    @rule(pick=st.integers(0, 1), share=st.sampled_from([0.2, 0.7]))
    def tell_use(self, pick: int, share: float) -> None:
        for node in _picked(Node.objects.all(), pick):
            NodeTelemetry.objects.filter(node=node).delete()
            NodeTelemetry.objects.create(node=node, at=self.clock[0], utilisation=[share] * 8)
        self.is_told = False

    @rule(seconds=st.sampled_from([1, 2 * KEPT_FOR.total_seconds(), -60]))
    def time_goes_on(self, seconds: float) -> None:
        self.clock[0] += timedelta(seconds=seconds)
        self.is_told = abs(seconds) > KEPT_FOR.total_seconds()

    # What is shown

    @invariant()
    def everybody_is_shown_what_is(self) -> None:
        self.turn += 1
        for callback in connection.run_on_commit[:]:
            callback[1]()
        connection.run_on_commit.clear()
        self._hear()
        asked = self._open_pages()
        version = str(self.version)
        shown = [self._ask(*what, version=version) for what in asked]
        with fresh_process():
            fresh = [self._ask(*what) for what in asked]
        for what, mine, true in zip(asked, shown, fresh, strict=True):
            assert self._secrets_in(what[0], mine) == [], what
            assert mine == true or not self.is_told, what

    def _open_pages(self) -> list[tuple[str, str, str]]:
        """Two readers with three pages each, for some changes; then another one comes."""
        first = self.turn // STAYS
        readers = [READERS[(first + place) % len(READERS)] for place in range(2)]
        more = MORE[self.turn % len(MORE)]
        return [
            (name, page, LANGUAGES[READERS.index(name) % 2])
            for name in readers
            for page in ("map", "queue", more)
        ]

    def _hear(self) -> None:
        heard = self.news.heard.get(overview_group(), 0)
        if heard != self.heard:
            self.version, self.heard = next(VERSIONS), heard
            self.is_told = True

    def _secrets_in(self, name: str, text: str) -> list[str]:
        """What stands in a text and is not for this reader."""
        rows = Membership.objects.unscoped().filter(user__username=name)
        may_see = (
            set(SECRETS) if name == "root" else set(rows.values_list("tenant__name", flat=True))
        )
        words = [word for tenant in set(SECRETS) - may_see for word in SECRETS[tenant]]
        return [word for word in words if word in text]

    def _ask(self, name: str, page: str, language: str, version: str = "") -> str:
        path, query, headers = PAGES[page]
        query = {**query, "v": version} if version and "part" in query else query
        headers = {**headers, "Accept-Language": language}
        answer = self.clients[name].get(path, query, headers=headers)
        assert answer.status_code == 200
        return answer.content.decode().replace(name, "me")


def _picked(rows: Any, number: int) -> list[Any]:
    """One of the rows, if there are any."""
    found = list(rows.order_by("pk"))
    return [found[number % len(found)]] if found else []


def _signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def news() -> Iterator[News]:
    with heard_news() as news:
        yield news


def test_open_pages_show_what_a_fresh_process_would(
    news: News, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [NOW]
    choose_time(monkeypatch, lambda: clock[0])
    make_two_tenants(2)
    make_user("dora")
    clients = {name: _signed_in(User.objects.get(username=name)) for name in READERS}
    machine = type("Machine", (Pages,), {"news": news, "clock": clock, "clients": clients})

    usual = settings.default
    assert usual is not None
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max(3, usual.max_examples // 16),
            stateful_step_count=12,
            suppress_health_check=list(HealthCheck),
        ),
    )
