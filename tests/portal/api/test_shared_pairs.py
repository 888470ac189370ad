"""Pairs and turns in REST, metrics, on pages and in explanations: roles, endpoints and topics."""

from datetime import timedelta
from typing import Any

import pytest

from portal.live.access import RefusedTopicError, group_for
from scheduling.clusters.models import ClusterRules, Device
from scheduling.core.notices import SLOWED
from scheduling.enums import LeaseKind
from scheduling.jobs.models import Job, JobEvent
from scheduling.runs.models import Attempt, Lease, Member, SharedDevice, SharedMinute
from tenants.clock import database_now
from tessera.run_spec import make_run_id
from tests.factories.cluster import NOW, job_document, make_job
from tests.factories.running import put_into, run_attempt
from tests.factories.tenants import make_viewer
from workers.services.shared_devices import keep_shared
from workers.transports.base import (
    NEVER_SUSPENDED,
    CompanyReading,
    DeviceReading,
    GuestReading,
    SuspensionReading,
)

SHARING: dict[str, Any] = {"worker": {"devices": 1}, "sharing": {"guests": "same-tenant"}}


@pytest.fixture
def pair(api: Any) -> tuple[Job, Job]:
    """Two jobs of one virtual cluster on a device; the first holds it."""
    ClusterRules.objects.create(id=1, sharing=True)
    first = make_job(name="secret-holder", **SHARING)
    second = make_job("lena", job_document(virtual_cluster="vision-a", **SHARING))
    Job.objects.unscoped().filter(pk=second.pk).update(name="secret-peer")
    node = Device.objects.order_by("pk")[0].node
    for job in (first, second):
        put_into(job, "running", now=NOW)
    run_attempt(first, node, now=NOW, devices=(0,))
    run_attempt(second, node, now=NOW, devices=())
    member = Member.objects.get(attempt__job=second)
    Lease.objects.create(
        device=Device.objects.get(node=node, index=0),
        attempt=member.attempt,
        member=member,
        job=second,
        kind=LeaseKind.GUEST,
        slot=1,
        beside=Member.objects.get(attempt__job=first),
        mode="slot",
        floor=1,
        most=2,
        is_peer=True,
        taken_at=NOW,
    )
    return first, second


def in_turns(seconds: float = 60.0) -> None:
    Lease.objects.filter(is_peer=True).update(turn_seconds=seconds)


def report(
    *,
    loss: float | None = 0.3,
    holder: SuspensionReading = NEVER_SUSPENDED,
    peer: SuspensionReading = NEVER_SUSPENDED,
    at: Any = None,
) -> None:
    """Let the node report the state of the coordinator, now."""
    lease = Lease.objects.select_related("device", "member__attempt", "beside__attempt").get(
        is_peer=True
    )
    beside = lease.beside
    assert beside is not None
    ids = [make_run_id(one.attempt.uid, one.role, one.rank) for one in (beside, lease.member)]
    guest = GuestReading(run_id=ids[1], duty=0.6, open=True, suspension=peer)
    company = CompanyReading(
        holder_run_id=ids[0], loss=loss, open=0.8, guests=(guest,), suspension=holder
    )
    reading = DeviceReading(index=lease.device.index, company=company)
    keep_shared(node_id=lease.device.node_id, devices=[reading], now=at or database_now())


WAITS = SuspensionReading(tier="T1", number=4, seconds=240.0, now_for=12.0)
WORKS = SuspensionReading(tier="T0", number=3, seconds=180.0)


def test_no_report_makes_a_suspension_longer_than_its_attempt(pair: tuple[Job, Job]) -> None:
    begin = database_now() - timedelta(seconds=60)
    Attempt.objects.filter(job=pair[0]).update(created_at=begin)
    forged = SuspensionReading(tier="T1", number=1, seconds=1e10, now_for=1e10)

    report(holder=forged, at=begin + timedelta(seconds=60))

    found = Attempt.objects.get(job=pair[0])
    assert (found.suspended_seconds, found.suspended_since) == (60.0, begin)


def test_both_jobs_of_a_pair_see_each_other_with_loss_and_duty(
    api: Any, pair: tuple[Job, Job]
) -> None:
    report()

    first, second = (api("alice").get(f"/api/v1/jobs/{job.pk}/sharing/").json() for job in pair)

    assert (first["role"], second["role"]) == ("holder", "peer")
    (device,), (other,) = first["devices"], first["devices"][0]["others"]
    assert (device["loss"], device["limit"], device["turn_seconds"]) == (0.3, 0.5, 0.0)
    assert (other["job_id"], other["role"], other["duty"]) == (pair[1].pk, "peer", 0.6)
    assert second["devices"][0]["others"][0]["role"] == "holder"
    assert second["devices"][0]["limit"] == 0.5


def test_jobs_in_turns_show_who_is_suspended_in_which_tier_and_since_when(
    api: Any, pair: tuple[Job, Job]
) -> None:
    in_turns()
    report(loss=None, holder=WAITS, peer=WORKS)
    since = database_now() - timedelta(seconds=12)

    first, second = (api("alice").get(f"/api/v1/jobs/{job.pk}/sharing/").json() for job in pair)
    panel = api("alice").get(f"/jobs/{pair[1].pk}/sharing/").content.decode()

    device = first["devices"][0]
    assert (device["turn_seconds"], device["tier"]) == (60.0, "T1")
    stored = Attempt.objects.get(job=pair[0]).suspended_since
    assert stored is not None
    assert abs((stored - since).total_seconds()) < 5
    assert device["suspended_since"] is not None
    assert (first["suspensions"], first["suspended_seconds"]) == (4, 240.0)
    assert (device["others"][0]["tier"], device["others"][0]["suspended_since"]) == ("", None)
    assert (second["devices"][0]["tier"], second["devices"][0]["others"][0]["tier"]) == ("", "T1")
    for part in (
        "take turns of",
        "This job is active now.",
        "suspended (T1)",
        "paired by its policy",
    ):
        assert part in panel, part


def test_a_suspension_ends_with_the_report_that_the_job_works(
    api: Any, pair: tuple[Job, Job]
) -> None:
    in_turns()
    report(loss=None, holder=WAITS, peer=WORKS)
    report(
        loss=None,
        holder=SuspensionReading(tier="T1", number=4, seconds=270.0),
        peer=SuspensionReading(tier="T0", number=4, seconds=180.0, now_for=1.0),
    )

    device = api("alice").get(f"/api/v1/jobs/{pair[0].pk}/sharing/").json()["devices"][0]

    assert (device["tier"], device["others"][0]["tier"]) == ("", "T0")


def test_without_a_recent_report_the_state_of_a_turn_is_unknown_on_the_map(
    api: Any, pair: tuple[Job, Job]
) -> None:
    in_turns()
    report(loss=None, holder=WAITS, peer=WORKS)
    node = Lease.objects.get(is_peer=True).device.node_id
    url = f"/api/v1/nodes/{node}/sharing/"

    fresh = api("alice").get(url).json()["devices"][0]["guests"][0]
    SharedDevice.objects.update(at=database_now() - timedelta(minutes=4))
    old = api("alice").get(url).json()["devices"][0]["guests"][0]

    assert (fresh["is_peer"], fresh["turn_seconds"], fresh["state"]) == (True, 60.0, "open")
    assert (fresh["tier"], fresh["holder_tier"]) == ("", "T1")
    assert (old["state"], old["holder_tier"]) == ("", "")


def test_the_tile_and_its_table_tell_a_pair_from_a_guest(api: Any, pair: tuple[Job, Job]) -> None:
    in_turns()
    report(loss=None, peer=WAITS, holder=WORKS)

    drawn = api("alice").get("/cluster/").content.decode()
    table = api("alice").get("/cluster/?view=table").content.decode().replace("\xa0", " ")

    assert '<rect class="guest suspended"' in drawn
    assert f"paired with {pair[1].pk} secret-peer (suspended (T1), turns of 1 min" in table


def test_the_history_has_the_limit_of_a_pair_and_the_duty_of_the_other_job(
    api: Any, pair: tuple[Job, Job]
) -> None:
    report(loss=0.3)

    found = api("alice").get(f"/api/v1/jobs/{pair[0].pk}/sharing/history/").json()

    (minute,) = found["minutes"]
    assert (minute["limit"], minute["over_limit"]) == (0.5, False)
    assert (minute["peers"], minute["suspended"], minute["duty"]) == (1, 0, 0.6)


@pytest.mark.parametrize(("loss", "mails"), [(0.3, 0), (0.6, 1)])
def test_a_holder_in_a_pair_is_warned_of_the_limit_of_an_equal(
    api: Any, pair: tuple[Job, Job], loss: float, mails: int
) -> None:
    began = NOW + timedelta(hours=1)
    for minute in range(12):
        report(loss=loss, at=began + timedelta(minutes=minute))

    events = JobEvent.objects.filter(kind=SLOWED)
    assert events.count() == mails
    assert SharedMinute.objects.count() == 12


def test_the_metrics_count_pairs_and_suspended_jobs_without_names(
    api: Any, pair: tuple[Job, Job]
) -> None:
    report(loss=0.3)
    together = api("root").get("/metrics").content.decode()
    totals = api("bob").get("/api/v1/cluster/sharing/").json()
    in_turns()
    report(loss=None, holder=WAITS, peer=WORKS)
    turns = api("root").get("/metrics").content.decode()

    assert (totals["guests"], totals["peers"], totals["loss_p95"]) == ({}, {"open": 1}, None)
    assert totals["pair_loss_p95"] == 0.3
    assert 'tessera_paired_jobs{state="open"} 1' in together
    assert 'tessera_guests{state="open"} 0' in together
    assert 'tessera_pair_loss_ratio{quantile="0.95"} 0.3' in together
    assert 'tessera_suspended_jobs{tier="T1"} 0' in together
    assert 'tessera_suspended_jobs{tier="T1"} 1' in turns


def why(api: Any, job: Job) -> str:
    return str(api("alice").get(f"/api/v1/jobs/{job.pk}/why/").json()["text"])


def test_the_explanation_of_a_running_job_names_its_pair_and_its_turn(
    api: Any, pair: tuple[Job, Job]
) -> None:
    unknown = why(api, pair[0])
    report(loss=0.3)
    together = [why(api, job) for job in pair]
    in_turns()
    report(loss=None, holder=WAITS, peer=WORKS)
    turns = [why(api, job) for job in pair]

    assert "not measured yet" in unknown
    for text in together:
        assert "its policy has paired them" in text
        assert "at 70% of its speed alone, and the other job runs for 60%" in text
    assert "It takes turns of 1 min 0 s with 1 other job" in turns[0]
    assert "It is suspended now (T1), for 12 s" in turns[0]
    assert turns[1].endswith("It is active now.")


ROLES = ("alice", "lena", "vera", "root", "bob", None)
INSIDERS = frozenset({"alice", "lena", "vera", "root"})
READS = (
    "/api/v1/jobs/{job}/sharing/", "/api/v1/jobs/{job}/sharing/history/",
    "/api/v1/jobs/{job}/sharing/history/?format=csv", "/api/v1/jobs/{job}/why/",
    "/jobs/{job}/", "/jobs/{job}/sharing/", "/jobs/{job}/sharing/loss.json",
)  # fmt: skip
CLUSTER_READS = (
    "/api/v1/nodes/{node}/sharing/", "/api/v1/cluster/sharing/", "/api/v1/cluster/",
    "/nodes/{node}/", "/nodes/", "/cluster/", "/cluster/?view=table", "/metrics",
)  # fmt: skip


@pytest.mark.parametrize("turns", [0.0, 60.0], ids=["together", "in turns"])
@pytest.mark.parametrize("role", ROLES)
def test_each_role_reads_each_address_of_a_pair_only_with_a_right_to_its_jobs(
    api: Any, client: Any, pair: tuple[Job, Job], role: str | None, turns: float
) -> None:
    in_turns(turns)
    report(loss=None if turns else 0.3, holder=WAITS if turns else NEVER_SUSPENDED)
    browser = api(role) if role else client
    node = Lease.objects.get(is_peer=True).device.node_id
    of_jobs = [address.format(job=job.pk) for job in pair for address in READS]
    of_cluster = [address.format(node=node) for address in CLUSTER_READS]

    answers = {url: browser.get(url) for url in (*of_jobs, *of_cluster)}

    for url, answer in answers.items():
        if role is None:
            assert answer.status_code in {302, 401, 403}, url
        elif url in of_jobs:
            assert answer.status_code == (200 if role in INSIDERS else 404), url
        else:
            assert answer.status_code == 200, url
        if role not in INSIDERS:
            body = answer.content.decode()
            assert "secret-" not in body, url
            assert not [job for job in pair if f"/jobs/{job.pk}/" in body and url not in of_jobs]


@pytest.mark.parametrize(
    ("role", "status"),
    [("alice", 200), ("lena", 200), ("vera", 403), ("root", 200), ("bob", 404), (None, 401)],
)
def test_each_role_stops_the_sharing_of_a_job_only_with_a_right_to_it(
    api: Any, client: Any, pair: tuple[Job, Job], role: str | None, status: int
) -> None:
    browser = api(role) if role else client

    answer = browser.post(f"/api/v1/jobs/{pair[0].pk}/sharing/stop/")

    assert answer.status_code in {status, 403 if role is None else status}
    assert Job.objects.unscoped().get(pk=pair[0].pk).sharing_stopped_at is None or status == 200


@pytest.mark.parametrize("role", [role for role in ROLES if role])
def test_each_role_subscribes_to_the_topics_of_a_pair_only_with_a_right_to_its_jobs(
    api: Any, pair: tuple[Job, Job], role: str
) -> None:
    viewer = make_viewer(role)
    topics = [f"job:{job.pk}" for job in pair] + ["queue:vision-a"]

    for topic in topics:
        if role in INSIDERS:
            assert group_for(topic, viewer).startswith("live.")
        else:
            with pytest.raises(RefusedTopicError):
                group_for(topic, viewer)
    assert group_for("nodes", viewer) == "live.nodes"
