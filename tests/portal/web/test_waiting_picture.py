"""Picture of a waiting job, its table, and the remedies with their cost."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from portal.web.waiting_picture import devices_of, fitting_label, offers_of
from scheduling.clusters.models import Node
from scheduling.estimates.models import StartEstimate
from scheduling.jobs.models import Job
from scheduling.jobs.queries.why import Why
from scheduling.rounds.models import Round
from tests.support.cluster_pages import Stage, make_stage, read, sign_in, words_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage() -> Stage:
    """Alice's train-a holds 2 devices of node-1, bob 4 of node-2; alice waits for 8 together."""
    made = make_stage(2)
    spec = {**made.waiting.spec}
    spec["roles"] = {"worker": {**next(iter(spec["roles"].values())), "devices": 8}}
    Job.objects.unscoped().filter(pk=made.waiting.pk).update(spec=spec, devices=8)
    Job.objects.unscoped().filter(pk=made.running.pk).update(
        started_at=timezone.now(), max_duration_seconds=3600
    )
    return made


def test_the_node_nearest_to_complete_is_first_with_its_blockers(
    client: Client, stage: Stage
) -> None:
    sign_in(client, "alice")

    text = words_of(read(client, f"/jobs/{stage.waiting.pk}/waiting/"))

    assert "Best fit: node-1, where 2 of 8 devices are not free." in text
    assert f"train-a {stage.running.pk}" in text
    assert "Frees 2 of the 2 devices that are missing here." in text
    assert "(time limit)" in text
    assert "complete by" in text
    assert "4 devices missing" in text


def test_every_block_and_the_target_are_labelled_in_the_picture(
    client: Client, stage: Stage
) -> None:
    sign_in(client, "alice")

    text = read(client, f"/jobs/{stage.waiting.pk}/waiting/")

    assert "target cell: 8 devices together" in text
    picture = text[text.index("<svg") : text.index("</svg>")]
    blocks = picture.split('<g class="block ')[1:]
    assert blocks
    for block in blocks:
        assert re.search(r'dx="6" y="\d+">[^<]+</text>', block), block
    assert re.search(r'class="until"[^>]*>until ', picture)
    assert "end not visible" in picture


@pytest.mark.parametrize(
    ("width", "expected"),
    [(400.0, "a long name of a job 71"), (40.0, "71"), (12.0, "")],
)
def test_a_block_shows_the_longest_label_that_fits(width: float, expected: str) -> None:
    assert fitting_label(width, "a long name of a job 71", "71") == expected


def test_chinese_letters_need_twice_the_width() -> None:
    assert fitting_label(60.0, "空闲空闲", "空") == "空"
    assert fitting_label(70.0, "空闲空闲", "空") == "空闲空闲"


def test_jobs_of_other_tenants_have_no_name_and_no_end(client: Client, stage: Stage) -> None:
    Job.objects.unscoped().filter(pk=stage.foreign.pk).update(
        started_at=timezone.now(), max_duration_seconds=7200
    )
    sign_in(client, "alice")

    text = words_of(read(client, f"/jobs/{stage.waiting.pk}/waiting/"))

    assert "secret-name" not in text
    assert "Its end is visible to its tenant only." in text
    assert text.count("(time limit)") == 2  # of train-a, in picture and table
    sign_in(client, "bob")
    read(client, f"/jobs/{stage.waiting.pk}/waiting/", status=404)


def test_all_instances_must_fit_before_another_limit_is_named(
    client: Client, stage: Stage
) -> None:
    role = next(iter(stage.waiting.spec["roles"]))
    sign_in(client, "alice")

    def summary(instances: int) -> str:
        spec = {**stage.waiting.spec}
        spec["roles"] = {role: {**spec["roles"][role], "devices": 4, "instances": instances}}
        Job.objects.unscoped().filter(pk=stage.waiting.pk).update(spec=spec)
        return words_of(read(client, f"/jobs/{stage.waiting.pk}/waiting/"))

    # Half of each node is free.
    assert "another limit blocks the job" in summary(2)
    text = summary(3)
    assert "2 of 3 instances fit on free devices now." in text
    assert "another limit" not in text
    assert "3 instances × 4 devices together" in text


def test_nodes_that_take_no_new_work_are_left_out(client: Client, stage: Stage) -> None:
    Node.objects.filter(name="node-1").update(state="cordoned", held="cordoned")
    sign_in(client, "alice")

    text = words_of(read(client, f"/jobs/{stage.waiting.pk}/waiting/"))

    assert "Best fit: node-2, where 4 of 8 devices are not free." in text
    Node.objects.update(state="down", contact="down")
    text = words_of(read(client, f"/jobs/{stage.waiting.pk}/waiting/"))
    assert "No node of a fitting type has 8 devices." in text


def test_a_running_job_has_no_picture(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")

    assert read(client, f"/jobs/{stage.running.pk}/waiting/") == ""
    assert 'id="job-waiting"' not in read(client, f"/jobs/{stage.running.pk}/")
    assert 'id="job-waiting"' in read(client, f"/jobs/{stage.waiting.pk}/")


STEPS = (
    {"kind": "devices", "text": "Starts now with 1 device", "changes": {"roles.main.devices": 1}},
    {"kind": "level", "text": "Starts now on a node", "changes": {"roles.main.within": "node"}},
    {"kind": "devices", "text": "Starts now with 4 devices", "changes": {"roles.main.devices": 4}},
)
SPEC = {"roles": {"main": {"instances": 2, "devices": 4}}, "max_duration": 3600}


def why_with(*steps: object) -> Why:
    now = timezone.now()
    return Why(job_id=1, state="queued", since=now, code="x", text="", steps=steps)  # type: ignore[arg-type]


def test_remedies_closest_to_the_request_come_first_with_their_cost() -> None:
    now = timezone.now()

    offers = offers_of(why_with(*STEPS), SPEC, state="queued", now=now)

    assert devices_of(SPEC) == 8
    assert [offer.text for offer in offers] == [
        "Starts now on a node",
        "Starts now with 4 devices",
        "Starts now with 1 device",
    ]
    assert [offer.ratio for offer in offers] == [1.0, 1.0, 4.0]
    assert "4× slower" in offers[-1].cost
    assert "time limit of 1 h does not change" in words_of(offers[-1].cost).replace("\xa0", " ")
    assert offers[-1].finish == now + timedelta(hours=4)
    assert offers_of(why_with(*STEPS), SPEC, state="running", now=now) == ()


def test_the_page_asks_before_it_applies_a_remedy(client: Client, stage: Stage) -> None:
    stage.waiting.refresh_from_db()
    role = next(iter(stage.waiting.spec["roles"]))
    StartEstimate.objects.create(
        job=stage.waiting,
        round_number=1,
        made_at=timezone.now(),
        sought=1,
        sought_for="vc-guarantee-in-use",
        steps=[{"kind": "devices", "text": "With 1 device in worker it starts now.",
                "changes": {f"roles.{role}.devices": 1}}],
    )  # fmt: skip
    Job.objects.unscoped().filter(pk=stage.waiting.pk).update(reason_code="vc-guarantee-in-use")
    Round.objects.create(
        number=1, started_at=timezone.now(), committed_at=timezone.now(), duration_ms=1.0
    )
    sign_in(client, "alice")

    html = read(client, f"/jobs/{stage.waiting.pk}/")

    assert 'data-confirm="Change from 8 devices to 1?"' in html
    assert "About 8× slower" in words_of(html)
