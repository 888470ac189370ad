"""One job: attempts, ranks, placement, events and why it waits."""

from datetime import timedelta

import pytest

from scheduling.core.messages import sentence
from scheduling.estimates.models import StartEstimate
from scheduling.jobs.models import Job, JobEvent
from scheduling.jobs.queries.events import events_of_job
from scheduling.jobs.queries.job_detail import job_detail
from scheduling.jobs.queries.jobs import rows_of_jobs
from scheduling.jobs.queries.why import why
from scheduling.jobs.services.lifecycle import Note, record_job_event
from scheduling.rounds.models import Round
from scheduling.runs.services.stopping import stop_job
from tenants.errors import NotFoundError
from tessera.messages import message_of
from tests.factories.scheduling import NOW, end, make_two_tenants, run_round, start, submit
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db

SOON = NOW + timedelta(seconds=1)


@pytest.fixture(autouse=True)
def _clusters():
    make_two_tenants()


def ask(username, job, at=SOON):
    return why(make_viewer(username), job.pk, now=at, round_seconds=10.0)


def test_the_page_of_a_running_gang_shows_every_rank_where_it_is():
    job = submit(worker={"instances": 2, "devices": 4, "ports": {"http": 1}})
    start(job)

    detail = job_detail(make_viewer("alice"), job.pk)

    (attempt,) = detail.attempts
    first, second = attempt.members
    assert (first.role, first.rank, second.rank, second.node_rank) == ("worker", 0, 1, 1)
    assert first.cells == ("node-1/0/0/0", "node-1/0/0/1", "node-1/0/1/2", "node-1/0/1/3")
    assert len(first.ports["http"]) == 1
    (place,) = detail.placement
    assert place.node == "node-1"
    assert place.ranks[0] == "worker 0"
    assert place.ranks[7] == "worker 1"
    assert [child.level for child in place.tree.children] == ["socket", "socket"]
    assert detail.can_stop
    assert detail.effective["priority"] == 10
    assert detail.effective["class"] == "guaranteed"


def test_a_foreign_job_is_not_found_like_one_that_is_not_there():
    job = submit("bob")

    for selector in (job_detail, events_of_job):
        with pytest.raises(NotFoundError) as foreign:
            selector(make_viewer("alice"), job.pk)
        with pytest.raises(NotFoundError) as missing:
            selector(make_viewer("alice"), job.pk + 1000)
        assert str(foreign.value) == str(missing.value)


def test_the_number_of_queries_does_not_grow_with_ranks(django_assert_max_num_queries):
    small, large = submit(devices=1), submit("bob", worker={"instances": 8, "devices": 1})
    start(small, large)
    alice, bob = make_viewer("alice"), make_viewer("bob")

    with django_assert_max_num_queries(8) as few:
        job_detail(alice, small.pk)
    with django_assert_max_num_queries(8) as many:
        job_detail(bob, large.pk)

    assert len(few) == len(many)


def test_events_come_in_pages_from_either_end():
    job = submit()
    start(job)
    viewer = make_viewer("alice")

    first = events_of_job(viewer, job.pk, limit=2)
    rest = events_of_job(viewer, job.pk, limit=50, cursor=first.next_cursor)
    newest = events_of_job(viewer, job.pk, limit=1, newest_first=True)

    kinds = [event.kind for event in (*first.results, *rest.results)]
    assert kinds == ["submit", "admit", "dispatch", "all-running"]
    assert newest.results[0].kind == "all-running"
    assert rest.next_cursor is None


def test_an_event_keeps_its_message_beside_its_english_text():
    job = submit()
    warned = sentence("idle-warning", below="5", minutes="30")
    record_job_event(
        job_id=job.pk, kind="idle-warning", now=NOW, note=Note(text=warned, detail={"below": 5})
    )

    event = events_of_job(make_viewer("alice"), job.pk, newest_first=True).results[0]

    assert (event.text, event.detail) == (str(warned), {"below": 5})
    assert message_of(event.text) == warned.message


def test_an_event_does_not_name_the_job_of_another_tenant():
    mine, foreign, own = submit(), submit("bob"), submit(name="other")
    for job in (foreign, own):
        record_job_event(
            job_id=mine.pk, kind="preempt", now=NOW, note=Note(detail={"for_job": job.pk})
        )
    record_job_event(job_id=mine.pk, kind="preempt", now=NOW, note=Note(detail={"for_job": 0}))

    events = events_of_job(make_viewer("alice"), mine.pk).results[1:]

    assert [event.detail.get("for_job") for event in events] == [None, own.pk, None]
    assert [event.detail.get("for") for event in events] == ["a job of another tenant", None, None]


def test_why_counts_the_blockers_of_others_and_names_ones_own():
    mine, foreign, own = submit(), submit("bob"), submit(name="other")
    run_round()
    Job.objects.unscoped().filter(pk=mine.pk).update(
        state="queued",
        reason_code="vc-guarantee-in-use",
        reason_text="All of it is in use.",
        reason={"blocked_by": [foreign.pk, own.pk], "unblock": ["Wait."]},
    )

    answer = ask("alice", mine)

    assert answer.code == "vc-guarantee-in-use"
    assert answer.blocked_by == (own.pk,)
    assert answer.blocked_by_others == 1
    assert answer.unblock == ("Wait.",)
    assert ask("root", mine).blocked_by == (foreign.pk, own.pk)


def test_why_says_that_the_scheduler_is_silent_after_three_intervals():
    job = submit(held=True)
    run_round()

    assert ask("alice", job, NOW + timedelta(seconds=30)).code == "held"
    late = ask("alice", job, NOW + timedelta(seconds=200))
    assert late.code == "scheduler-not-running"
    assert late.text == "No round for 3 min 20 s. Running jobs continue; no new job starts."


def test_why_of_a_fresh_job_waits_for_the_next_round():
    job = submit()

    first = ask("alice", job, NOW + timedelta(seconds=2))
    run_round(NOW)
    Job.objects.unscoped().filter(pk=job.pk).update(state="queued", reason_code="")
    after = ask("alice", job, NOW + timedelta(seconds=4))
    late = ask("alice", job, NOW + timedelta(seconds=25))

    assert first.code == after.code == late.code == "waiting-for-round"
    assert first.text == "Waiting for the next scheduling round (due within 8 s)."
    assert after.text == "Waiting for the next scheduling round (due within 6 s)."
    assert late.text == "Waiting for the next scheduling round (overdue by 15 s)."
    assert first.unblock == after.unblock == ()


def test_why_of_a_job_that_no_round_looks_at_for_three_intervals_says_so():
    job = submit()

    assert Round.objects.count() == 0
    assert ask("alice", job, NOW + timedelta(seconds=31)).code == "scheduler-not-running"


def test_why_of_a_job_that_does_not_wait_reports_what_it_does():
    job = submit()
    start(job)
    assert (ask("alice", job).code, ask("alice", job).text) == ("", "It is running.")

    end(job, code=3)

    assert ask("alice", job).text == ("It failed (class user): worker-0 ended with exit code 3.")
    assert "clone the job" in ask("alice", job).unblock[0]


def test_why_of_a_job_that_has_ended_reports_how_and_for_how_long():
    well, stopped = submit(), submit(held=True)
    start(well)
    end(well, at=NOW + timedelta(seconds=75))
    stop_job(job=stopped, viewer=make_viewer("alice"), message="a typo", now=NOW)

    assert ask("alice", well).text == "Succeeded after 1 min 15 s."
    assert ask("alice", stopped).text.startswith("It was stopped before it started")
    assert ask("alice", well).unblock == ask("alice", stopped).unblock == ()


def test_why_has_words_for_every_state():
    job = submit()
    run_round()

    for state in ("admitted", "starting", "suspect", "preempting", "stopping"):
        Job.objects.unscoped().filter(pk=job.pk).update(state=state)
        assert ask("alice", job).text.endswith(".")
    assert JobEvent.objects.filter(job=job).exists()


def test_advice_that_needs_free_devices_is_dropped_when_none_is_left():
    job = submit(devices=4)
    run_round()
    steps = [
        {"kind": "devices", "text": "With 1 device it starts now.", "changes": {}},
        {"kind": "class", "text": "With opportunistic it starts now.", "changes": {}},
    ]
    StartEstimate.objects.create(
        job=job, round_number=1, made_at=NOW, steps=steps, sought=1, sought_for="no-cell-of-level"
    )

    def shown(free):
        reason = {"blocked_by": [], "unblock": [], "free": free}
        Job.objects.unscoped().filter(pk=job.pk).update(
            state="queued", reason_code="no-cell-of-level", reason_text="x", reason=reason
        )
        answer = ask("alice", job)
        row = rows_of_jobs(make_viewer("alice"), [job.pk])[job.pk]
        assert row.unblock == answer.unblock
        assert (answer.round_number, answer.steps_round) == (1, 1)
        return [step["kind"] for step in answer.steps]

    assert shown(free=2) == ["devices", "class"]
    assert shown(free=0) == ["class"]
