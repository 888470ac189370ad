"""Answers in one sentence, above the numbers of a page."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.web.fleet import fleet_verdict
from portal.web.promises import promise_verdict
from portal.web.what_if_figures import what_if_verdict
from scheduling.clusters.models import Node
from scheduling.core.promises.figures import Cause, Verdict, figures
from scheduling.usage.models import FleetInterval
from scheduling.usage.queries.fleet import NodeNow
from scheduling.what_if.queries import PromiseView
from tests.support.cluster_pages import make_stage, read, sign_in, words_of

NOW = datetime(2026, 5, 4, 9, 30, tzinfo=UTC)


def audited(number: int, verdict: Verdict, own: float, *causes: Cause) -> dict[str, Any]:
    return {
        "job": number,
        "eligible": NOW.timestamp(),
        "started": True,
        "own_wait_s": own,
        "private_wait_s": 60.0,
        "bound_s": 120.0,
        "denied_s": 0.0,
        "verdict": verdict.value,
        "causes": [cause.value for cause in causes],
    }


def view_of(*jobs: dict[str, Any]) -> PromiseView:
    numbers = figures(list(jobs), [])
    return PromiseView(
        vc_id=1,
        virtual_cluster="vision-a",
        since=date(2026, 5, 3),
        until=date(2026, 5, 3),
        days=(date(2026, 5, 3),),
        sees_all=True,
        guaranteed_hours=None,
        used_hours=None,
        verdicts=numbers["verdicts"],
        causes=numbers["causes"],
        own_wait_s=numbers["own_wait_s"],
        private_wait_s=numbers["private_wait_s"],
        returned_devices=None,
        return_s=None,
        jobs=jobs,
    )


def test_a_violated_promise_names_the_job_that_lost_most() -> None:
    verdict = promise_verdict(
        view_of(
            audited(5, Verdict.KEPT, 60.0),
            audited(6, Verdict.VIOLATED, 600.0, Cause.DENIED),
            audited(7, Verdict.VIOLATED, 7200.0, Cause.DENIED),
        )
    )

    assert verdict.tone == "bad"
    assert "2 of 3 jobs waited longer than allowed." in verdict.text
    assert verdict.detail.startswith("Job 7 waited 2\u00a0h;")


def test_a_longer_wait_with_another_cause_does_not_break_the_promise() -> None:
    verdict = promise_verdict(
        view_of(
            audited(5, Verdict.EXCEEDED, 600.0, Cause.CAP),
            audited(6, Verdict.EXCEEDED, 600.0, Cause.HARDWARE),
            audited(7, Verdict.EXCEEDED, 600.0, Cause.HARDWARE),
        )
    )

    assert verdict.tone == "ok"
    assert "3 jobs waited beyond the bound" in verdict.detail
    assert "unhealthy nodes" in verdict.detail


def test_a_promise_without_long_waits_or_without_jobs_has_no_detail() -> None:
    met = promise_verdict(view_of(audited(5, Verdict.KEPT, 60.0)))

    assert (met.tone, met.detail) == ("ok", "")
    assert "the only job started within its bound" in met.text
    assert promise_verdict(view_of()).tone == ""


def answer(old: float | None, new: float | None, *, p99: float = 10.0) -> dict[str, Any]:
    return {
        "was": {"avg_jct_h": old, "p99_jct_h": 10.0},
        "would_be": {"avg_jct_h": new, "p99_jct_h": p99},
        "winner": 15,
        "loser": 4,
        "same": 15,
        "unknown": 0,
    }


@pytest.mark.parametrize(
    ("result", "tone", "start"),
    [
        (answer(3.0, 2.4), "ok", "Better on average: jobs take 20\u00a0% less time; of 34 jobs"),
        (answer(3.0, 2.4, p99=11.5), "warn", "Better on average"),
        (answer(3.0, 3.6), "warn", "Worse on average: jobs take 20\u00a0% longer"),
        (answer(3.0, 3.01), "", "No difference on average"),
        (answer(None, 3.0), "", "No answer"),
        (answer(3.0, None), "", "No answer"),
    ],
)
def test_a_what_if_is_answered_by_its_mean_and_limited_by_its_tail(
    result: dict[str, Any], tone: str, start: str
) -> None:
    verdict = what_if_verdict(result)

    assert verdict.tone == tone
    assert verdict.text.startswith(start)
    assert ("p99 time grows by 15" in verdict.detail) is (result["would_be"]["p99_jct_h"] > 11)


def node(name: str, state: str = "ready", hours: int = 1) -> NodeNow:
    return NodeNow(name=name, state=state, since=NOW - timedelta(hours=hours))


def test_a_fleet_names_the_worst_nodes_first() -> None:
    nodes = [node("a", "cordoned", 9), node("b"), node("c", "suspect"), node("d", "down")]

    verdict = fleet_verdict([*nodes, node("e", "draining")])

    assert verdict.tone == "bad"
    assert verdict.text == (
        "4 of 5 nodes are not ready: d (down since 4 May 08:30), c (suspect since 4 May 08:30), "
        "a (cordoned since 4 May 00:30), 1 more."
    )
    assert fleet_verdict(nodes[:1]).tone == "warn"
    assert fleet_verdict([node("b"), node("c")]).text == "All 2 nodes are ready."
    assert fleet_verdict([node("b")]).text == "The only node is ready."
    assert fleet_verdict([]).tone == ""


@pytest.mark.django_db
def test_the_page_of_the_fleet_begins_with_its_answer(client: Client) -> None:
    make_stage(2)
    at = timezone.now()
    FleetInterval.objects.create(span_seconds=900, at=at, until=at, samples=1)
    Node.objects.filter(name="node-2").update(state="down")
    sign_in(client, "alice")

    text = words_of(read(client, "/fleet/"))

    assert text.index("1 of 2 nodes is not ready: node-2 (down since") < text.index("Health of")
