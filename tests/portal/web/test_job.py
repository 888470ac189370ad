"""The pages of one job: what each shows, to whom, and what one may do from there."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.http import StreamingHttpResponse
from django.test import AsyncClient, Client

from portal.web.components import words
from portal.web.components.words import NO_BREAK
from portal.web.job import STOP_POLLING
from portal.web.job_training import layout_words
from scheduling.clusters.models import Node
from scheduling.compat.slurm.shell import command_of
from scheduling.core.forecast import HORIZON
from scheduling.core.lifecycle import PreemptionRule
from scheduling.estimates.models import StartEstimate
from scheduling.jobs.models import Job, JobEvent
from scheduling.parallelism.models import ModelProfile
from scheduling.rounds.models import QueueOrder, Round
from scheduling.runs.models import Attempt, AttemptProgress
from scheduling.runs.services import progress
from scheduling.runs.services.progress import record_training_events
from scheduling.runs.services.stopping import preempt_job
from tenants.models import User
from tenants.roles import Role
from tests.factories.batch_profiles import batch_profile
from tests.factories.cluster import (
    job_document,
    make_job,
    make_shared_cluster,
    pin_cell,
)
from tests.factories.running import put_into, run_attempt
from tests.support.cluster_pages import markup_of, sign_in
from workers.conf import worker_settings
from workers.models import GoodputSample, LogStream
from workers.services import logs

pytestmark = pytest.mark.django_db
HTMX: dict[str, Any] = {"headers": {"HX-Request": "true"}}
TABS = ("", "logs/", "attempts/", "events/", "receipts/", "spec/", "calls/")
HOSTILE = "</textarea><script>alert('1')</script> \"{% x %}\" 名前"


@pytest.fixture
def nodes() -> list[Node]:
    return make_shared_cluster(alice=Role.MEMBER, victor=Role.VIEWER)


@pytest.fixture
def alice(client: Client, nodes: list[Node]) -> Client:
    return sign_in(client, "alice")


def read(client: Client, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200, address
    return response.content.decode()


def add_sample(job: Job, attempt: Attempt, now: datetime, goodput: float = 1180.0) -> None:
    GoodputSample.objects.create(
        job=job, attempt=attempt, at=now, seconds=5, step=61_440, steps=10, samples=5,
        throughput=1372.0, goodput=goodput, loss=1.8421, step_seconds=0.4, devices=2,
    )  # fmt: skip


@pytest.mark.parametrize("tab", TABS)
def test_every_page_of_a_job_shows_its_head_and_hostile_words_do_nothing(
    alice: Client, nodes: list[Node], tab: str
) -> None:
    job = make_job(
        name=HOSTILE[:63],
        note=HOSTILE,
        labels={"team": "a\"b<c>'"},
        worker={"command": HOSTILE, "env": {"X": HOSTILE}},
    )
    run_attempt(put_into(job, "running", now=datetime.now(UTC)), nodes[0], now=datetime.now(UTC))

    text = read(alice, f"/jobs/{job.pk}/{tab}")

    assert "<script>alert" not in text
    assert "&lt;/textarea&gt;&lt;script&gt;" in text
    assert text.count("<h1") == 1
    assert f'data-topic="job:{job.pk}"' in text
    assert "Running" in text


def test_the_summary_shows_the_lines_of_a_slurm_script_without_the_functions_around_them(
    alice: Client, nodes: list[Node]
) -> None:
    command = command_of("/bin/bash", ["srun python3 train.py"], "")
    job = make_job(worker={"command": command})

    text = read(alice, f"/jobs/{job.pk}/")

    assert "<code>srun python3 train.py</code>" in text
    assert "Translated from a Slurm script." in text
    assert "srun() (" in read(alice, f"/jobs/{job.pk}/spec/")


@pytest.mark.parametrize("tab", [*TABS, "goodput.json", "logs/worker-0.log"])
def test_a_job_of_another_tenant_is_not_there(client: Client, nodes: list[Node], tab: str) -> None:
    theirs = make_job("bob", job_document(virtual_cluster="language"))
    sign_in(client, "alice")

    assert client.get(f"/jobs/{theirs.pk}/{tab}").status_code == 404
    assert client.get(f"/jobs/{theirs.pk + 1}/{tab}").status_code == 404
    assert client.get(f"/jobs/{2**70}/{tab}").status_code == 404


@pytest.mark.parametrize("act", ["stop", "clone", "release"])
def test_no_user_acts_on_a_job_of_another_tenant(
    client: Client, nodes: list[Node], act: str
) -> None:
    theirs = make_job("bob", job_document(virtual_cluster="language", held=True))
    sign_in(client, "alice")

    assert client.post(f"/jobs/{theirs.pk}/{act}/").status_code == 404
    theirs.refresh_from_db()
    assert (theirs.state, theirs.held) == ("queued", True)
    assert Job.objects.unscoped().count() == 1


@pytest.mark.parametrize("act", ["stop", "clone", "release"])
def test_a_viewer_sees_a_job_and_may_do_nothing_to_it(
    client: Client, nodes: list[Node], act: str
) -> None:
    job = make_job(held=True)
    sign_in(client, "victor")

    text = read(client, f"/jobs/{job.pk}/")

    assert 'id="do-' not in text
    assert client.post(f"/jobs/{job.pk}/{act}/").status_code == 403
    job.refresh_from_db()
    assert (job.state, job.held) == ("queued", True)


@pytest.mark.parametrize("act", ["stop", "clone", "release"])
def test_nothing_is_done_by_looking(alice: Client, act: str) -> None:
    assert alice.get(f"/jobs/{make_job().pk}/{act}/").status_code == 405


def test_a_waiting_job_shows_reason_and_remedies(alice: Client) -> None:
    job = make_job(worker={"devices": 8})
    other = make_job()
    Job.objects.unscoped().filter(pk=job.pk).update(
        reason_code="held",
        reason_text="It was submitted as held.",
        reason={"blocked_by": [other.pk, 10_000], "unblock": ["Release it."]},
    )

    text = read(alice, f"/jobs/{job.pk}/")

    # No round has run in this test, and that comes first.
    assert "No round has ever run" in text
    assert "scheduler-not-running" in text


def test_a_goodput_without_loss_is_not_a_share_of_itself(alice: Client, nodes: list[Node]) -> None:
    now = datetime.now(UTC)
    job = put_into(make_job(worker={"devices": 2}), "running", now=now)
    add_sample(job, run_attempt(job, nodes[0], now=now, devices=(0, 1)), now)
    GoodputSample.objects.update(goodput=1372.0, throughput=1372.0)

    text = read(alice, f"/jobs/{job.pk}/")

    assert "equal to the throughput" in text
    assert "of 1,372 samples/s" not in text


def test_numbers_of_a_running_job_open_its_page(alice: Client, nodes: list[Node]) -> None:
    now = datetime.now(UTC)
    job = put_into(make_job(worker={"devices": 2}), "running", now=now)
    add_sample(job, run_attempt(job, nodes[0], now=now, devices=(0, 1)), now)

    text = read(alice, f"/jobs/{job.pk}/")

    assert "1,180" in text
    assert "86\xa0% of 1,372 samples/s" in text
    assert "61,440" in text
    assert "loss 1.842" in text
    assert "Device-hours" in text
    assert "<small>CPU slots</small>" in text
    assert "<small>GPU</small>" not in text


def test_a_resized_job_opens_with_the_devices_that_it_holds(
    alice: Client, nodes: list[Node]
) -> None:
    now = datetime.now(UTC)
    job = put_into(make_job(worker={"devices": 1}), "running", now=now)
    run_attempt(job, nodes[0], now=now, devices=(0, 1))

    text = read(alice, f"/jobs/{job.pk}/")

    assert re.search(r"1 × [^<]+ requested", text)


def test_hours_of_real_devices_are_gpu_hours(alice: Client, nodes: list[Node]) -> None:
    nodes[0].devices.update(is_gpu=True)
    job = put_into(make_job(), "running", now=datetime.now(UTC))
    run_attempt(job, nodes[0], now=datetime.now(UTC))

    text = read(alice, f"/jobs/{job.pk}/")

    assert "Device-hours" in text
    assert "<small>GPU</small>" in text
    assert "<small>CPU slots</small>" not in text


def test_history_placement_ranks_and_facts_are_drawn(alice: Client, nodes: list[Node]) -> None:
    now = datetime.now(UTC)
    job = put_into(make_job(worker={"devices": 2}, max_duration="2h"), "running", now=now)
    run_attempt(job, nodes[0], now=now, devices=(0, 1))

    text = read(alice, f"/jobs/{job.pk}/")

    assert "2 of 8 devices of node-1 hold ranks 0, 0." in text
    assert "worker 0" in text
    assert "Time limit</dt><dd>2\xa0h" in markup_of(text)
    assert '<rect class="bit ok"' in text


def test_checkpoints_are_marked_in_the_history_and_listed_once_among_the_events(
    alice: Client, nodes: list[Node]
) -> None:
    now = datetime.now(UTC)
    job = put_into(make_job(), "running", now=now)
    run_attempt(job, nodes[0], now=now)
    told = ("checkpoint", "Checkpoint of step 7 saved, 0123.", {"step": 7})
    for text in (HOSTILE, HOSTILE, told[1]):
        record_training_events(job_id=job.pk, attempt=1, notes=[(told[0], text, told[2])], now=now)

    events = read(alice, f"/jobs/{job.pk}/events/")

    assert events.count("checkpoint") >= 2
    assert events.count("Checkpoint of step 7 saved, 0123.") == 1
    assert HOSTILE not in events
    assert JobEvent.objects.filter(job=job, kind="checkpoint").count() == 2
    assert read(alice, f"/jobs/{job.pk}/").count('class="checkpoint"') == 2


def test_a_resize_is_marked_in_the_history_as_one(alice: Client, nodes: list[Node]) -> None:
    now = datetime.now(UTC)
    job = put_into(make_job(), "running", now=now)
    run_attempt(job, nodes[0], now=now)

    preempt_job(job_id=job.pk, for_job=0, rule="Grows", now=now, cause=PreemptionRule.RESIZE)

    history = read(alice, f"/jobs/{job.pk}/")
    assert '<li><span class="m">resized</span> <span class="t3">attempt 1</span></li>' in history


def test_an_attempt_that_saves_every_second_does_not_fill_the_events(nodes: list[Node]) -> None:
    job, most = make_job(), progress.MOST_OF_AN_ATTEMPT
    notes: list[tuple[str, str, dict[str, Any]]] = [
        ("checkpoint", f"Checkpoint {number}.", {}) for number in range(most + 6)
    ]

    record_training_events(job_id=job.pk, attempt=1, notes=notes, now=datetime.now(UTC))
    record_training_events(job_id=job.pk, attempt=2, notes=notes[:1], now=datetime.now(UTC))

    assert JobEvent.objects.filter(job=job, kind="checkpoint").count() == most + 1


def test_the_pinned_cell_of_a_job_is_among_its_facts(alice: Client, nodes: list[Node]) -> None:
    pin_cell("vision-a", "lab", "node-2/0")
    plain, pinned = make_job(), make_job(worker={"devices": 2, "pinned_cell": "lab"})

    without, text = (read(alice, f"/jobs/{job.pk}/") for job in (plain, pinned))

    assert "Pinned cell" not in without
    assert "<dt>Pinned cell</dt><dd>lab</dd>" in markup_of(text)
    assert "2 × any device in one node on pinned cell lab" in text


def test_the_curve_has_a_gap_between_attempts(alice: Client, nodes: list[Node]) -> None:
    now = datetime.now(UTC)
    job = put_into(make_job(), "running", now=now)
    first = run_attempt(job, nodes[0], now=now, ended=True)
    add_sample(job, first, now.replace(second=1))
    add_sample(job, run_attempt(job, nodes[0], now=now), now.replace(second=2), 900.0)

    figure = json.loads(alice.get(f"/jobs/{job.pk}/goodput.json").content)

    goodput = next(trace for trace in figure["data"] if trace["name"] == "goodput")
    assert goodput["y"] == [1180.0, None, 900.0]
    assert figure["layout"]["xaxis"]["range"][0] == words.on_chart(job.submitted_at)


def test_the_curve_shows_profiles_of_variable_batches_as_points(
    alice: Client, nodes: list[Node]
) -> None:
    now = datetime.now(UTC)
    elastic = {"min": 1, "max": 8, "mode": "adaptive_batch", "initial_batch": 64, "max_batch": 512}
    job = make_job(elastic=elastic, worker={"devices": 1})
    put_into(job, "running", now=now)
    profile = {
        "tenant": job.tenant, "fingerprint": job.model_fingerprint, "requested_at": now,
        "document": batch_profile(),
    }  # fmt: skip
    ModelProfile.objects.create(device_type="a", measured_at=now, **profile)
    ModelProfile.objects.create(device_type="b", **profile)

    figure = json.loads(alice.get(f"/jobs/{job.pk}/goodput.json").content)

    (shown,) = [one for one in figure["data"] if one.get("mode") == "markers"]
    assert (shown["name"], shown["y"]) == ("profile on a", [pytest.approx(64 / 0.164, rel=1e-4)])


def test_the_curve_is_marked_where_the_job_was_changed_and_where_it_saved(
    alice: Client, nodes: list[Node]
) -> None:
    now = datetime.now(UTC)
    job = put_into(make_job(), "running", now=now)
    add_sample(job, run_attempt(job, nodes[0], now=now), now)
    record_training_events(job_id=job.pk, attempt=1, notes=[("checkpoint", "x", {})], now=now)
    preempt_job(job_id=job.pk, for_job=0, rule="Grows", now=now, cause=PreemptionRule.RESIZE)

    figure = json.loads(alice.get(f"/jobs/{job.pk}/goodput.json").content)
    page = read(alice, f"/jobs/{job.pk}/")

    when = words.on_chart(now)
    assert figure["marks"] == [
        {"x": when, "text": "resized, attempt 1", "line": True},
        {"x": when, "text": "checkpoint saved", "line": False},
    ]
    assert '"text": "resized, attempt 1"' in page


def test_a_swap_brings_the_parts_and_the_first_curve_only_when_it_is_asked_for(
    alice: Client, nodes: list[Node]
) -> None:
    now = datetime.now(UTC)
    job = put_into(make_job(), "running", now=now)
    add_sample(job, run_attempt(job, nodes[0], now=now), now)

    plain = alice.get(f"/jobs/{job.pk}/", **HTMX).content.decode()
    asked = alice.get(f"/jobs/{job.pk}/?curve=wanted", **HTMX).content.decode()

    assert "<html" not in plain
    for part in ("job-head", "job-history", "job-ranks", "job-side"):
        assert f'id="{part}" hx-swap-oob="true"' in plain
    assert "job-curve" not in plain
    assert 'id="job-curve" hx-swap-oob="true"' in asked


def test_a_replaced_part_never_requests_its_own_replacement(
    alice: Client, nodes: list[Node]
) -> None:
    # Two requests overlap: when the first response replaces the element that sent the second,
    # htmx looks for the second's parts in the removed element and reports that it finds none.
    now = datetime.now(UTC)
    job = put_into(make_job(), "running", now=now)
    run_attempt(job, nodes[0], now=now)

    page = read(alice, f"/jobs/{job.pk}/")
    parts = alice.get(f"/jobs/{job.pk}/", **HTMX).content.decode()

    assert "every 20s" in page
    assert f'hx-get="/jobs/{job.pk}/"' in page
    assert f'hx-get="/jobs/{job.pk}/"' not in parts


def test_a_page_of_a_job_stops_polling_when_the_job_has_ended(
    alice: Client, nodes: list[Node]
) -> None:
    now = datetime.now(UTC)
    job = put_into(make_job(), "running", now=now)
    run_attempt(job, nodes[0], now=now, ended=True)
    running = alice.get(f"/jobs/{job.pk}/", **HTMX).status_code
    put_into(job, "succeeded", now=now)

    ended = alice.get(f"/jobs/{job.pk}/", **HTMX).status_code

    assert (running, ended) == (200, STOP_POLLING)
    assert "every 20s" not in read(alice, f"/jobs/{job.pk}/")


def test_the_instances_of_a_job_that_is_no_gang_are_listed_with_states_and_nodes(
    alice: Client, nodes: list[Node]
) -> None:
    now = datetime.now(UTC)
    first = make_job(gang=False, worker={"instances": 3, "devices": 1})
    second = put_into(Job.objects.unscoped().get(pk=first.pk + 1), "running", now=now)
    run_attempt(second, nodes[0], now=now)

    text = read(alice, f"/jobs/{first.pk}/")
    swap = alice.get(f"/jobs/{first.pk}/", **HTMX).content.decode()
    card = text.partition('id="job-instances"')[2].partition("</section>")[0]
    rows = card.split("<tr>")[2:]

    assert "3 jobs that start and end independently" in card
    assert [f"worker {rank}" in row for rank, row in enumerate(rows)] == [True] * 3
    assert "this job" in rows[0]
    assert f'href="/jobs/{second.pk}/"' in rows[1]
    assert nodes[0].name in rows[1]
    assert "unning" in rows[1]
    assert nodes[0].name not in rows[0] + rows[2]
    assert 'id="job-instances" hx-swap-oob="true"' in swap


def test_a_gang_lists_no_instances(alice: Client) -> None:
    assert "instances are separate jobs" not in read(alice, f"/jobs/{make_job().pk}/")


def test_events_are_listed_newest_first_without_naming_jobs_of_others(alice: Client) -> None:
    theirs = make_job("bob", job_document(virtual_cluster="language", name="their secret"))
    job = make_job()
    JobEvent.objects.create(
        job=job, at=datetime.now(UTC), kind="preempt", state="preempting", attempt=1,
        text="a higher priority came", detail={"for_job": theirs.pk},
    )  # fmt: skip

    text = read(alice, f"/jobs/{job.pk}/events/")

    assert text.index("a higher priority came") < text.index("alice submitted it")
    assert "for a job of another tenant" in text
    assert "their secret" not in text


def test_the_document_is_shown_as_it_was_sent_and_secrets_are_not(alice: Client) -> None:
    job = make_job(worker={"secrets": {"API_TOKEN": "do-not-show-this"}})

    text = read(alice, f"/jobs/{job.pk}/spec/")

    assert "do-not-show-this" not in text
    assert "(redacted)" in text
    assert "virtual_cluster: vision-a" in text


def test_calls_name_the_job_and_only_what_the_viewer_may_do(
    client: Client, nodes: list[Node]
) -> None:
    job = make_job()

    mine = read(sign_in(client, "alice"), f"/jobs/{job.pk}/calls/")
    theirs = read(sign_in(client, "victor"), f"/jobs/{job.pk}/calls/")

    assert f"tessera stop {job.pk}" in mine
    assert f"http://testserver/api/v1/jobs/{job.pk}/why/" in mine
    assert f"tessera stop {job.pk}" not in theirs


def test_a_job_is_stopped_with_the_reason_that_was_given(alice: Client) -> None:
    job = make_job()

    response = alice.post(f"/jobs/{job.pk}/stop/", {"reason": "wrong data"}, follow=True)

    assert f"Job {job.pk}: stopped." in response.content.decode()
    again = alice.post(f"/jobs/{job.pk}/stop/", follow=True)
    assert f"Job {job.pk} has already ended." in again.content.decode()


def test_a_log_is_followed_only_while_the_job_runs(alice: Client) -> None:
    job = make_job()

    live = read(alice, f"/jobs/{job.pk}/logs/")
    alice.post(f"/jobs/{job.pk}/stop/")
    over = read(alice, f"/jobs/{job.pk}/logs/")

    button = re.compile(r"<button[^>]*data-log-follow[^>]*>")
    assert [" hidden" in button.findall(markup_of(page))[0] for page in (live, over)] == [
        False,
        True,
    ]


def test_a_clone_is_a_new_job_of_the_same_document(alice: Client) -> None:
    job = make_job(worker={"devices": 2, "secrets": {"KEY": "x"}})

    response = alice.post(f"/jobs/{job.pk}/clone/", follow=True)

    copy = Job.objects.unscoped().latest("id")
    assert copy.cloned_from_id == job.pk
    assert copy.demand == job.demand
    assert "Secrets are not copied: worker/KEY." in response.content.decode()


def test_a_job_that_cannot_be_cloned_opens_in_the_form(alice: Client) -> None:
    job = make_job()
    job.virtual_cluster.archived_at = datetime.now(UTC)
    job.virtual_cluster.save()

    response = alice.post(f"/jobs/{job.pk}/clone/")

    assert response.headers["Location"] == f"/submit/?clone={job.pk}"


def test_a_held_job_is_released(alice: Client) -> None:
    job = make_job(held=True)

    assert 'id="do-release"' in read(alice, f"/jobs/{job.pk}/")
    alice.post(f"/jobs/{job.pk}/release/")

    job.refresh_from_db()
    assert job.held is False


@pytest.mark.django_db(transaction=True)
async def test_a_log_is_downloaded_whole(nodes: list[Node], tmp_path: Path) -> None:
    from asgiref.sync import sync_to_async

    def prepare() -> tuple[int, bytes, str]:
        now = datetime.now(UTC)
        job = put_into(make_job(), "running", now=now)
        attempt = run_attempt(job, nodes[0], now=now)
        data = ("zeile ä 名前\n" * 100_000).encode()
        path = logs.relative_path(job.pk, 1, "worker", 0)
        worker_settings().storage.logs.write(path, offset=0, data=data, cap_bytes=1 << 30)
        LogStream.objects.create(
            member=attempt.members.get(), job=job, path=path, end=len(data), closed=True
        )
        return job.pk, data, path

    number, data, path = await sync_to_async(prepare)()
    client = AsyncClient()
    await client.aforce_login(await User.objects.aget(username="alice"))

    response = await client.get(f"/jobs/{number}/logs/worker-0.log")

    assert isinstance(response, StreamingHttpResponse)
    got = b"".join([piece async for piece in response])
    worker_settings().storage.logs.delete(path)
    assert got == data
    assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert "attachment" in response.headers["Content-Disposition"]


def test_the_number_of_queries_does_not_grow_with_attempts_and_members(
    alice: Client, nodes: list[Node], django_assert_num_queries: object
) -> None:
    now = datetime.now(UTC)
    job = put_into(make_job(), "running", now=now)
    for _ in range(5):
        add_sample(job, run_attempt(job, nodes[0], now=now, ended=True), datetime.now(UTC))
    run_attempt(job, nodes[1], now=now)

    with django_assert_num_queries(28):  # type: ignore[operator]
        alice.get(f"/jobs/{job.pk}/")
    with django_assert_num_queries(21):  # type: ignore[operator]
        alice.get(f"/jobs/{job.pk}/", **HTMX)


def waiting_with_steps(*steps: Mapping[str, Any]) -> Job:
    """A job that waits for its guarantee, in the line and with an estimate and these steps."""
    now, job = datetime.now(UTC), make_job(worker={"devices": 8})
    Round.objects.create(number=1, started_at=now, committed_at=now, duration_ms=1)
    Job.objects.unscoped().filter(pk=job.pk).update(
        reason_code="vc-guarantee-in-use", reason_text="All of it is in use.", reason={}
    )
    StartEstimate.objects.create(
        job=job,
        round_number=1,
        made_at=now,
        p10=now + timedelta(minutes=16),
        p50=now + timedelta(minutes=20),
        p90=now + timedelta(minutes=34),
        sought=1,
        sought_for="vc-guarantee-in-use",
        steps=list(steps),
    )
    return job


FEWER = {
    "kind": "devices",
    "text": "With 4 devices in worker it starts now.",
    "changes": {"roles.worker.devices": 4},
}


def test_a_waiting_job_shows_its_estimate_and_a_step_to_apply(alice: Client) -> None:
    job = waiting_with_steps(FEWER)

    QueueOrder.objects.create(
        virtual_cluster_id=job.virtual_cluster_id, guaranteed=[0, 0, 0, job.pk]
    )

    text = read(alice, f"/jobs/{job.pk}/")
    changed = alice.post(
        f"/jobs/{job.pk}/amend/", {"changes": '{"roles.worker.devices": 4}'}, follow=True
    )

    assert "in 15 – 35" in text
    assert "3 jobs ahead in vision-a" in text
    assert "With 4 devices in worker it starts now." in text
    job.refresh_from_db()
    assert job.devices == 4
    assert "The next scheduling round uses the new values" in changed.content.decode()
    assert "No stored rounds yet" in read(alice, f"/jobs/{job.pk}/evidence/")
    assert "No start estimates yet" in read(alice, "/estimates/")


def test_of_two_users_who_apply_steps_of_one_page_the_second_is_refused(
    alice: Client,
) -> None:
    job = waiting_with_steps(FEWER, {**FEWER, "changes": {"roles.worker.devices": 2}})
    page = read(alice, f"/jobs/{job.pk}/")
    (seen,) = set(re.findall(r'name="seen" value="([0-9a-f]{32})"', page))

    def apply(devices: int) -> str:
        sent = {"seen": seen, "changes": json.dumps({"roles.worker.devices": devices})}
        return alice.post(f"/jobs/{job.pk}/amend/", sent, follow=True).content.decode()

    first, second, again = apply(4), apply(2), apply(4)

    job.refresh_from_db()
    assert job.devices == 4
    assert "Job not changed: The job was changed since you loaded it." in second
    assert "The next scheduling round uses the new values" in first
    assert "The next scheduling round uses the new values" in again  # a double click
    assert JobEvent.objects.filter(job=job, kind="amend").count() == 1


def test_a_range_whose_end_nobody_looked_at_has_none(alice: Client) -> None:
    job = waiting_with_steps()
    estimate = StartEstimate.objects.get(job=job)

    def told() -> tuple[str, bool]:
        by_rest = alice.get(f"/api/v1/jobs/{job.pk}/why/").json()
        return read(alice, f"/jobs/{job.pk}/"), by_rest["eta"]["open"]

    within = told()
    StartEstimate.objects.update(p90=estimate.made_at + timedelta(seconds=HORIZON))
    beyond = told()

    assert ("in 15 – 35" in within[0], within[1]) == (True, False)
    assert (f"in 15{NO_BREAK}min or later" in beyond[0], beyond[1]) == (True, True)


def test_what_would_help_is_reported_once_and_waiting_only_when_nothing_else_is_left(
    alice: Client,
) -> None:
    now, job = datetime.now(UTC), make_job(worker={"devices": 8})
    Round.objects.create(number=1, started_at=now, committed_at=now, duration_ms=1)
    told = ["Ask for 4 devices", "Wait for job 1.", "Wait for job 1."]
    Job.objects.unscoped().filter(pk=job.pk).update(
        reason_code="vc-guarantee-in-use",
        reason_text="All of it is in use.",
        reason={"unblock": told},
    )
    step = {"kind": "devices", "text": "Ask for 4 devices.", "changes": {"class": "x"}}
    StartEstimate.objects.create(
        job=job,
        round_number=1,
        made_at=now,
        sought=1,
        sought_for="vc-guarantee-in-use",
        steps=[step],
    )
    page = f"/jobs/{job.pk}/"

    offered = read(alice, page)
    StartEstimate.objects.update(steps=[], proof=[])
    Job.objects.unscoped().filter(pk=job.pk).update(reason={})
    waiting = read(alice, page)
    StartEstimate.objects.update(sought_for="held", round_number=0)
    looking = read(alice, page)

    assert offered.count("Ask for 4 devices") == 1
    assert offered.count("Wait for job 1.") == 1
    assert "Searching for changes that would start the job now" in looking
    assert "Estimating start time" in looking
    assert "No action needed. The job is queued." not in offered + looking
    assert "No action needed. The job is queued." in waiting
    assert "Looking for" not in offered + waiting
    assert f'data-topic="queue:vision-a"><div data-topic="job:{job.pk}"' in markup_of(looking)


def test_nonsense_instead_of_changes_changes_nothing(alice: Client) -> None:
    job = make_job(worker={"devices": 8})

    for changes in ("", "[]", "{", '{"name": "x"}'):
        alice.post(f"/jobs/{job.pk}/amend/", {"changes": changes})

    job.refresh_from_db()
    assert job.devices == 8


def saved(job: Job, attempt: int, *steps: tuple[int, str]) -> None:
    """Checkpoints of these steps, with hashes that begin as said."""
    notes = [
        ("checkpoint", f"{step} {sha}", {"step": step, "sha256": sha * 32, "seed": 1})
        for step, sha in steps
    ]
    record_training_events(job_id=job.pk, attempt=attempt, notes=notes, now=datetime.now(UTC))


def test_receipts_show_the_bits_of_checkpoints_and_where_two_trainings_part(
    alice: Client, nodes: list[Node]
) -> None:
    mine, other = make_job(), make_job()
    theirs = make_job("bob", virtual_cluster="language")
    saved(mine, 1, (10, "aa"), (20, "ab"))
    saved(mine, 2, (20, "ab"))
    saved(other, 1, (10, "aa"), (20, "cd"))
    page = f"/jobs/{mine.pk}/receipts/"

    alone, parted = read(alice, page), read(alice, f"{page}?with={other.pk}")
    attempts = read(alice, f"{page}?attempt=1&with_attempt=2")
    hidden, odd = read(alice, f"{page}?with={theirs.pk}"), read(alice, f"{page}?with=x")

    assert "abababababababab" in alone
    assert (
        "The checkpoints differ from step 20: abababababab in this job, cdcdcdcdcdcd in the other."
        in parted
    )
    assert "Identical training state: 1 checkpoint in common up to step 20, all equal." in attempts
    assert "Job not found" in hidden
    assert "Enter a job ID" in odd


def test_the_time_of_short_steps_is_told_in_milliseconds(alice: Client, nodes: list[Node]) -> None:
    now = datetime.now(UTC)
    job = put_into(make_job(), "running", now=now)
    add_sample(job, run_attempt(job, nodes[0], now=now), now)
    GoodputSample.objects.update(step_seconds=0.00125)

    text = read(alice, f"/jobs/{job.pk}/")

    assert "1.25 ms per step" in text


@pytest.mark.parametrize(
    ("layout", "summary"),
    [
        ([[2, 2]], "2 processes per device, logical workers of each: 2, 2"),
        ([[4]], "1 process per device, logical workers of each: 4"),
        ([[1, 2], [1]], "3 processes per device, logical workers of each: 1, 2; 1"),
        ([[1]] * 9, "9 processes per device, logical workers of each: 1; 1; 1; 1; 1; 1; 1; 1; …"),
    ],
)
def test_the_words_of_a_layout_report_how_many_share_a_device(
    layout: list[list[int]], summary: str
) -> None:
    assert layout_words(layout, 1) == summary


def test_a_job_shows_how_its_logical_workers_lie_on_its_devices(
    alice: Client, nodes: list[Node]
) -> None:
    now = datetime.now(UTC)
    elastic = {"mode": "logical_workers", "logical_workers": 4, "executors": 2}
    job = make_job(elastic=elastic, worker={"devices": 1})
    fresh = read(alice, f"/jobs/{job.pk}/")
    attempt = run_attempt(put_into(job, "running", now=now), nodes[0], now=now)
    Attempt.objects.filter(pk=attempt.pk).update(layout=[[2, 2]])

    text = read(alice, f"/jobs/{job.pk}/")
    User.objects.filter(username="alice").update(language="zh-hans")
    chinese = read(alice, f"/jobs/{job.pk}/")
    (told,) = alice.get(f"/api/v1/jobs/{job.pk}/attempts/").json()["results"]

    assert "4 logical workers, up to 2 processes per device" in fresh
    assert "Layout" not in fresh
    assert "2 processes per device, logical workers of each: 2, 2" in text
    assert "每个设备 2 个进程，各进程的逻辑工作者：2，2" in chinese
    assert "每个设备最多 2 个进程" in chinese
    assert told["layout"] == [[2, 2]]


def test_an_elastic_job_shows_its_bounds_and_where_it_saturates(
    alice: Client, nodes: list[Node]
) -> None:
    now = datetime.now(UTC)
    elastic = {"min": 1, "max": 8, "mode": "adaptive_batch", "initial_batch": 64, "max_batch": 512}
    job = make_job(elastic=elastic, worker={"devices": 8})
    fresh = read(alice, f"/jobs/{job.pk}/")
    attempt = run_attempt(put_into(job, "running", now=now), nodes[0], now=now)
    for number, (devices, seconds) in enumerate(((4, 10.0), (8, 10.0)), start=2):
        one = Attempt.objects.create(
            job=job, number=number, uid=f"{number:032}", round_number=1, port=15_000 + number,
            devices=devices, device_type="a", nodes=1, created_at=now, ended_at=now,
        )  # fmt: skip
        AttemptProgress.objects.create(attempt=one, seconds=seconds, steps=100, samples=6_400.0)

    text = read(alice, f"/jobs/{job.pk}/")

    assert attempt is not None
    assert "1 to 8 devices, batch 64 to 512" in fresh
    assert "Predicted" not in fresh
    assert "8 requested; no gain measured beyond 4 (on a)" in text
    assert "4: 100\u00a0%, 8: 50\u00a0%" in text
    assert "Goodput by size" not in fresh
    figure = json.loads(re.findall(r'<script id="chart-sizes"[^>]*>(.*?)</script>', text)[0])
    _least, _most, predicted, measured, now_used = figure["data"]
    held = sum(len(member.devices) for member in attempt.members.all())
    assert (now_used["name"], now_used["x"]) == ("in use now", [held])
    assert now_used["y"] == [predicted["y"][held - 1]]
    assert predicted["line"]["dash"] == "dash"
    assert predicted["x"] == list(range(1, 9))
    assert [place for place, pace in enumerate(measured["y"], start=1) if pace] == [4, 8]
    assert ">8 requested; no gain measured beyond 4 on a.</span>" in text
    assert "4: 10 (measured)" in text


def test_one_measured_size_claims_no_gain(alice: Client, nodes: list[Node]) -> None:
    now = datetime.now(UTC)
    elastic = {"min": 1, "max": 4, "mode": "adaptive_batch", "initial_batch": 64, "max_batch": 512}
    job = make_job(elastic=elastic, worker={"devices": 1})
    run_attempt(put_into(job, "running", now=now), nodes[0], now=now)
    one = Attempt.objects.create(
        job=job, number=2, uid=f"{2:032}", round_number=1, port=15_002,
        devices=1, device_type="a", nodes=1, created_at=now, ended_at=now,
    )  # fmt: skip
    AttemptProgress.objects.create(attempt=one, seconds=10.0, steps=53, samples=3_392.0)

    text = read(alice, f"/jobs/{job.pk}/")

    assert "1 requested; not measured beyond 1 device (on a)" in text
    assert "gain" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "Scaling efficiency" not in text
    figure = json.loads(re.findall(r'<script id="chart-sizes"[^>]*>(.*?)</script>', text)[0])
    least, most, estimated, _measured, *_in_use = figure["data"]
    assert (least["name"], most["name"], most["fill"]) == ("no gain", "perfect scaling", "tonexty")
    assert least["y"] == [5.3] * 4
    assert most["y"] == [5.3, 10.6, 15.9, 21.2]
    assert all(
        low <= pace <= high * 1.001
        for low, pace, high in zip(least["y"], estimated["y"], most["y"], strict=True)
    )


def test_events_can_leave_out_checkpoints(alice: Client, nodes: list[Node]) -> None:
    job = make_job()
    for kind, text in (("checkpoint", "saved step 10"), ("resumed", "continues at step 10")):
        JobEvent.objects.create(job=job, at=datetime.now(UTC), kind=kind, text=text)

    whole = read(alice, f"/jobs/{job.pk}/events/")
    short = read(alice, f"/jobs/{job.pk}/events/?checkpoints=hide")

    assert "saved step 10" in whole
    assert "saved step 10" not in short
    assert "continues at step 10" in short
    assert re.search(r'checkpoints=hide"[^>]*aria-current="true"', short)
