"""Acts that are asked for twice: the second changes nothing, or says plainly why it is none."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
from django.test import Client

from scheduling.clusters.models import Node
from scheduling.jobs.models import Job, JobEvent
from scheduling.notices.models import Notice
from tenants.models import AuditEntry
from tests.factories.cluster import job_document, make_virtual_cluster
from tests.support.cluster_pages import Stage, make_stage, sign_in

ROOT: Final = "/api/v1/"
JSON: Final = "application/json"
GONE: Final = (404, "not-found")


@dataclass(frozen=True)
class Act:
    """One request.

    Attributes:
        prepare: makes what it needs, and says its address below ``/api/v1/``.
        first: the status of the first answer.
        second: the status of the second answer, with the code where it is a refusal.
    """

    prepare: Callable[[Stage, Client], str]
    first: int = 200
    second: tuple[int, str] = (200, "")
    method: str = "post"
    reason: str = ""


def made(collection: str, **body: Any) -> Callable[[Stage, Client], str]:
    """Make something by REST."""

    def make(_stage: Stage, client: Client) -> str:
        answer = client.post(f"{ROOT}{collection}/", body, content_type=JSON)
        assert answer.status_code == 201, answer.content
        return f"{collection}/{answer.json()['id']}/"

    return make


def after(prepare: Callable[[Stage, Client], str], *verbs: str) -> Callable[[Stage, Client], str]:
    """The last of these verbs, after the ones before it were done."""

    def act(stage: Stage, client: Client) -> str:
        address = prepare(stage, client)
        for verb in verbs[:-1]:
            body = {"reason": "a fan"} if verb == "cordon" else {}
            done = client.post(
                f"{ROOT}{address}{verb}/",
                body,
                content_type=JSON,
            )
            assert done.status_code == 200, done.content
        return f"{address}{verbs[-1]}/"

    return act


def waiting(stage: Stage, _client: Client) -> str:
    return f"jobs/{stage.waiting.pk}/"


def running(stage: Stage, _client: Client) -> str:
    return f"jobs/{stage.running.pk}/"


def busy(stage: Stage, _client: Client) -> str:
    return f"nodes/{stage.nodes[0].pk}/"


def empty(stage: Stage, _client: Client) -> str:
    return f"nodes/{stage.nodes[2].pk}/"


def silent(stage: Stage, client: Client) -> str:
    Node.objects.filter(pk=stage.nodes[0].pk).update(contact="down", state="down")
    return busy(stage, client)


def unused_cluster(stage: Stage, _client: Client) -> str:
    return f"virtual-clusters/{make_virtual_cluster('unused', stage.vision, cells=0).pk}/"


def sweep(_stage: Stage, client: Client) -> str:
    body = {"job": job_document(), "parameters": {"LR": ["0.1", "0.01"]}}
    answer = client.post(f"{ROOT}sweeps/", body, content_type=JSON)
    return f"sweeps/{answer.json()['id']}/"


def removed(prepare: Callable[[Stage, Client], str]) -> Act:
    return Act(prepare, first=204, second=GONE, method="delete")


ACTS: Final = {
    "stop a job that waits": Act(after(waiting, "stop")),
    "stop a job that runs": Act(after(running, "stop")),
    "hold a job": Act(after(waiting, "hold")),
    "release a job": Act(after(waiting, "hold", "release")),
    "stop a sweep": Act(after(sweep, "stop")),
    "cordon a node": Act(after(busy, "cordon"), reason="a fan"),
    "uncordon a node": Act(after(busy, "cordon", "uncordon")),
    "drain a node that is busy": Act(after(busy, "drain"), reason="a fan"),
    "drain a node that is empty": Act(after(empty, "drain"), reason="a fan"),
    "declare a node dead": Act(after(silent, "declare-dead"), reason="gone"),
    "archive a tenant": Act(
        after(made("tenants", name="robots"), "archive"), second=(409, "conflict")
    ),
    "restore a tenant": Act(
        after(made("tenants", name="robots"), "archive", "restore"), second=(409, "conflict")
    ),
    "dismiss an announcement": Act(
        after(made("announcements", text="x"), "dismiss"), first=204, second=(204, "")
    ),
    "end a token": Act(
        made("tokens", name="x", scopes=["jobs:read"]),
        first=204,
        second=(204, ""),
        method="delete",
    ),
    "withdraw an announcement": removed(made("announcements", text="x")),
    "delete a log rule": removed(made("log-rules", name="x", pattern="y", action="label")),
    "delete a hook": removed(
        made("webhooks", name="x", url="https://h.example.org/", events=["job.failed"])
    ),
    "delete a template": removed(made("job-templates", name="x", text="name: x")),
    "delete a view": removed(made("saved-views", name="x", query="state=running")),
    "delete an import rule": removed(
        made("import-rules", kind="partition", name="gpu", virtual_cluster="vision-a")
    ),
    "delete a priority class": removed(made("priority-classes", name="x", value=5)),
    "let a member go": removed(
        made("members", tenant="language", username="alice", role="member")
    ),
    "take a node out": removed(empty),
    # It stays readable, so that the second is told.
    "put a virtual cluster away": Act(
        unused_cluster, first=204, second=(409, "conflict"), method="delete"
    ),
}


@pytest.mark.django_db
@pytest.mark.parametrize("name", ACTS)
def test_what_is_asked_for_twice_is_done_once(name: str) -> None:
    act, stage = ACTS[name], make_stage(3)
    client = sign_in(Client(), "root")
    address = act.prepare(stage, client)
    body = {"reason": act.reason} if act.reason else {}

    def ask() -> tuple[int, str]:
        send = getattr(client, act.method)
        answer = send(f"{ROOT}{address}", body, content_type=JSON)
        said = answer.json() if answer.content else {}
        if answer.status_code >= 400:
            assert said["errors"][0]["message"].endswith(".")
        return answer.status_code, str(said.get("code") or "")

    def noted() -> list[Any]:
        """All that is written of jobs and nodes, and how much was noted and told."""
        jobs = Job.objects.unscoped().order_by("pk").values()
        logs = (AuditEntry.objects.unscoped(), JobEvent.objects, Notice.objects.unscoped())
        nodes = Node.objects.order_by("pk").values()
        return [*jobs, *nodes, *(log.count() for log in logs)]

    assert ask()[0] == act.first
    once = noted()
    assert ask() == act.second
    assert noted() == once
