"""Whoever looks, through whatever selector: nothing of a tenant that is not theirs comes out."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import timedelta
from enum import Enum

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scheduling.clusters.models import Node
from scheduling.clusters.queries.cluster import cluster_snapshot, vc_uses
from scheduling.clusters.queries.nodes import list_nodes, node_detail
from scheduling.clusters.queries.virtual_clusters import (
    list_virtual_clusters,
    virtual_cluster_detail,
)
from scheduling.jobs.models import Job
from scheduling.jobs.queries.events import events_of_job
from scheduling.jobs.queries.job_detail import attempts_of_job, job_detail
from scheduling.jobs.queries.jobs import (
    counts_by_reason,
    counts_by_state,
    page_of_jobs,
    page_of_queue,
    rows_of_jobs,
)
from scheduling.jobs.queries.why import why
from scheduling.rounds.queries import recent_rounds, ticker
from tenants.errors import NotFoundError
from tenants.models import Tenant
from tenants.roles import Permission, Role, Scope
from tenants.viewers import Viewer
from tests.factories.scheduling import NOW, end, make_two_tenants, run_round, start, submit

pytestmark = pytest.mark.django_db

PEOPLE = {"vision": ("alice", "ada"), "language": ("bob",)}


@pytest.fixture(autouse=True)
def world():
    """Running, waiting, borrowing and ended jobs of both tenants, in each other's way."""
    make_two_tenants()
    for person, tenant in (("alice", "vision"), ("bob", "language")):
        ended = submit(person, name=f"{tenant}-ended")
        start(ended)
        end(ended, code=1)
        start(submit(person, devices=8, name=f"{tenant}-runs"))
        start(submit(person, devices=2, name=f"{tenant}-borrows", **{"class": "opportunistic"}))
        submit(person, devices=8, name=f"{tenant}-waits")
    run_round()
    everybody = list(Job.objects.unscoped().values_list("id", flat=True))
    Job.objects.unscoped().filter(state="queued").update(
        reason={"blocked_by": everybody, "unblock": []}
    )


def texts(value: object) -> Iterator[str]:
    """Every text anywhere inside a result."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from texts(getattr(value, field.name))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from texts(key)
            yield from texts(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from texts(item)
    elif isinstance(value, str) and not isinstance(value, Enum):
        yield value


def everything(viewer: Viewer) -> Iterator[object]:
    """What each selector has to say to ``viewer``; a refusal by name says nothing."""
    at = NOW + timedelta(seconds=5)
    yield cluster_snapshot(viewer, now=at)
    yield vc_uses(viewer)
    yield list_virtual_clusters(viewer)
    yield page_of_jobs(viewer)
    yield page_of_queue(viewer)
    yield counts_by_state(viewer)
    yield counts_by_reason(viewer)
    yield list_nodes(viewer)
    yield [node_detail(viewer, pk) for pk in Node.objects.values_list("id", flat=True)]
    yield recent_rounds(viewer)
    yield ticker(viewer, now=at, round_seconds=10)
    for name in ("vision-a", "language-a"):
        try:
            yield virtual_cluster_detail(viewer, name)
        except NotFoundError:
            continue
    for job_id in Job.objects.unscoped().values_list("id", flat=True):
        yield rows_of_jobs(viewer, [job_id])
        try:
            yield job_detail(viewer, job_id)
        except NotFoundError:
            continue
        yield attempts_of_job(viewer, job_id)
        yield events_of_job(viewer, job_id)
        yield why(viewer, job_id, now=at, round_seconds=10)


def viewers() -> st.SearchStrategy[tuple[dict[str, Role], frozenset[Scope] | None, str | None]]:
    roles = st.dictionaries(st.sampled_from(sorted(PEOPLE)), st.sampled_from(list(Role)))
    scopes = st.none() | st.frozensets(st.sampled_from(list(Scope)), min_size=1)
    return st.tuples(roles, scopes, st.none() | st.sampled_from(sorted(PEOPLE)))


@example(drawn=({"vision": Role.LEAD}, None, None))
@example(drawn=({}, None, None))
@example(drawn=({"vision": Role.LEAD, "language": Role.LEAD}, None, "language"))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=viewers())
def test_nothing_of_a_foreign_tenant_comes_out_of_any_selector(drawn):
    roles, scopes, bound = drawn
    ids = dict(Tenant.objects.unscoped().values_list("name", "id"))
    viewer = Viewer(
        user_id=10**6,
        username="eve",
        roles={ids[name]: role for name, role in roles.items()},
        tenant_names={ids[name]: name for name in roles},
        scopes=scopes,
        bound_tenant_id=ids[bound] if bound else None,
    )

    said = [text for result in everything(viewer) for text in texts(result)]

    for tenant, people in PEOPLE.items():
        if viewer.can(Permission.VIEW_JOBS, ids[tenant]):
            assert f"{tenant}-waits" in said
            continue
        assert not [text for text in said if text in people]
        # The virtual cluster and its cells are the tenant's; every other name is a job's.
        names = [text.partition("/")[0] for text in said if text.startswith(f"{tenant}-")]
        assert set(names) <= {f"{tenant}-a"}
        if not viewer.can(Permission.VIEW_TENANT, ids[tenant]):
            assert not [text for text in said if tenant in text]


def test_the_numbers_of_foreign_jobs_do_not_come_out_either():
    foreign = set(
        Job.objects.unscoped().filter(tenant__name="language").values_list("id", flat=True)
    )
    tenant = Tenant.objects.unscoped().get(name="vision")
    viewer = Viewer(
        user_id=10**6,
        username="eve",
        roles={tenant.pk: Role.LEAD},
        tenant_names={tenant.pk: tenant.name},
    )

    named = {
        value
        for result in everything(viewer)
        for key, value in pairs(result)
        if key in {"job_id", "blocked_by", "for_job", "cloned_from", "after"}
    }

    assert named
    assert not named & foreign


def pairs(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Every number anywhere inside a result with the name of the field it is in."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from pairs(getattr(value, field.name), field.name)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from pairs(item, str(name))
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from pairs(item, key)
    elif isinstance(value, int):
        yield key, value
