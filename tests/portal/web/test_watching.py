"""Rules about logs and idle policies on pages and by REST, and the badge of an idling job."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from scheduling.runs.models import Attempt
from scheduling.watching.models import IdleRule, IdleSpell, LogRule
from tests.factories.log_rules import make_log_rules_to_begin_with
from tests.support.cluster_pages import HOSTILE, Stage, make_stage, read, sign_in, words_of

pytestmark = pytest.mark.django_db
JSON = "application/json"


@pytest.fixture
def stage() -> Stage:
    return make_stage(2)


def test_admins_edit_log_rules_and_everybody_reads_them(client: Client, stage: Stage) -> None:
    root, alice = sign_in(client, "root"), sign_in(Client(), "alice")

    wrong = root.post("/log-rules/", {"name": "x", "pattern": "(", "action": "label"})
    root.post("/log-rules/", {"name": HOSTILE[:60], "pattern": "boom", "action": "label"})

    assert "not closed" in words_of(wrong.content.decode())
    made = LogRule.objects.get(pattern="boom")
    assert "boom" in words_of(read(alice, "/log-rules/"))
    assert "<img src=x" not in read(alice, "/log-rules/")
    sent = {"version": 1, "name": "it", "pattern": "bang", "action": "stop-retries"}
    assert alice.post(f"/log-rules/{made.pk}/", sent).status_code == 403
    root.post(f"/log-rules/{made.pk}/", sent)
    made.refresh_from_db()
    assert (made.name, made.pattern, made.enabled) == ("it", "bang", False)
    root.post(f"/log-rules/{made.pk}/delete/")
    assert not LogRule.objects.filter(pk=made.pk).exists()


def test_scripts_edit_log_rules(client: Client, stage: Stage) -> None:
    make_log_rules_to_begin_with()
    root = sign_in(client, "root")
    body = {"name": "disk", "pattern": "I/O error", "action": "exclude-node"}

    made = root.post("/api/v1/log-rules/", body, content_type=JSON)

    address = f"/api/v1/log-rules/{made.json()['id']}/"
    assert root.post("/api/v1/log-rules/", body, content_type=JSON).status_code == 409
    off = root.patch(address, {"enabled": False}, content_type=JSON)
    assert (off.json()["enabled"], off.json()["version"]) == (False, 2)
    assert root.delete(address).status_code == 204
    assert len(root.get("/api/v1/log-rules/").json()["results"]) == 3


def test_leads_say_what_happens_to_idling_jobs(client: Client, stage: Stage) -> None:
    lena, alice = sign_in(client, "lena"), sign_in(Client(), "alice")
    page = f"/virtual-clusters/{stage.vision_a.pk}/idle/"
    address = f"/api/v1/virtual-clusters/{stage.vision_a.pk}/idle-policy/"
    sent = {"active": "on", "below": "5", "warn_minutes": "30", "stop_minutes": "60"}

    assert alice.post(page, sent).status_code == 403
    assert not IdleRule.objects.exists()
    refused = lena.post(page, {**sent, "stop_minutes": "31"})
    assert refused.status_code == 422
    assert "Give at least" in words_of(refused.content.decode())
    lena.post(page, {**sent, "exempt_priorities": ["prod"]})

    assert "stopped after 1 h" in words_of(read(alice, page))
    told = alice.get(address).json()["idle_policy"]
    assert (told["warn_after"], told["exempt_priorities"]) == (1800, ["prod"])
    assert alice.put(address, {"below": 1.0}, content_type=JSON).status_code == 403
    changed = lena.put(address, {"stop_after": None}, content_type=JSON).json()["idle_policy"]
    assert (changed["stop_after"], changed["warn_after"]) == (None, 1800)
    assert lena.delete(address).status_code == 204
    assert alice.get(address).json() == {"idle_policy": None}
    assert sign_in(Client(), "bob").get(address).status_code == 404


def test_an_idling_job_wears_a_badge(client: Client, stage: Stage) -> None:
    alice = sign_in(client, "alice")
    now = timezone.now()
    IdleSpell.objects.create(
        job=stage.running,
        attempt=Attempt.objects.get(job=stage.running),
        since=now - timedelta(minutes=40),
        until=now,
        warned_at=now,
        stop_at=now + timedelta(minutes=20),
    )

    page = words_of(read(alice, f"/jobs/{stage.running.pk}/"))

    assert "Devices idle since" in page
    assert "Tessera stops the job at" in page
    metrics = client.get("/metrics").content.decode()
    assert 'tessera_idle_workloads{virtual_cluster="vision-a",tenant="vision"} 1' in metrics
