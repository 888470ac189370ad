"""The example of device sharing through a whole portal: holder and guests on a demo node."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import httpx
import pytest
import yaml

from portal.supervisor.redis_server import NoRedisError, find_redis
from tessera.cli.upload import with_upload
from tessera.client import Client
from tests.conftest import PROJECT_ROOT
from tests.support.waiting import wait_until
from tests.support.whole_portal import ADMIN_PASSWORD, PASSWORD, WholePortal, whole_portal

pytestmark = [pytest.mark.redis, pytest.mark.timeout(900)]

EXAMPLES = PROJECT_ROOT / "examples" / "sharing"
REST_DEVICES = 6
WAIT_SECONDS = 120.0
GRACE_SECONDS = 5.0
SLACK_SECONDS = 5.0
"""Time of a loaded machine to deliver a notice and to report an end."""


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholePortal]:
    try:
        find_redis()
    except NoRedisError as error:
        pytest.skip(str(error))
    with whole_portal(tmp_path_factory.mktemp("sharing")) as portal:
        portal.stop_examples()
        yield portal


@pytest.fixture
def alice(portal: WholePortal) -> Iterator[Client]:
    with portal.client("alice") as client:
        yield client


@pytest.fixture
def admin(portal: WholePortal) -> Iterator[Client]:
    with Client(portal.url, timeout_seconds=60.0) as client:
        token = client.create_token(
            name="sharing", scopes=["nodes:admin"], user="admin", password=ADMIN_PASSWORD
        )
    with Client(portal.url, token.key, timeout_seconds=60.0) as client:
        yield client


def test_guests_work_beside_a_holder_until_sharing_stops_or_the_holder_ends(
    portal: WholePortal, alice: Client, admin: Client
) -> None:
    admin.patch("cluster/rules/", {"sharing": True})
    holder = submit(alice, "holder")
    wait_for_state(alice, holder, "running")
    rest = submit(alice, "rest")
    wait_for_state(alice, rest, "running")
    guests = [submit(alice, "guest"), submit(alice, "guest")]

    # They run on devices of the holder, whose coordinator measures it.
    has_run_for_a_minute(portal, holder)
    for guest in guests:
        wait_for_state(alice, guest, "running")
    wait_until(
        lambda: are_measured(alice, holder, guests), WAIT_SECONDS, "figures of both devices"
    )
    assert alice.get(f"jobs/{holder}/sharing/")["role"] == "holder"
    assert alice.get(f"jobs/{guests[0]}/sharing/")["role"] == "guest"
    panel = page(portal, f"/jobs/{holder}/sharing/")
    assert all(f"/jobs/{guest}/" in panel for guest in guests)
    assert "Stop sharing" in panel

    # The switch of the cluster orders them to leave, and back.
    admin.patch("cluster/rules/", {"sharing": False})
    check_that_they_leave(portal, alice, guests)
    admin.patch("cluster/rules/", {"sharing": True})
    for guest in guests:
        wait_for_state(alice, guest, "running")

    # They continue on the devices when the holder ends.
    alice.stop(holder)
    for guest in guests:
        wait_until(partial(is_promoted, alice, guest), WAIT_SECONDS, "the promotion")
    before = [last_step(alice, guest) for guest in guests]
    wait_until(
        lambda: all(
            last_step(alice, guest) > step for guest, step in zip(guests, before, strict=True)
        ),
        WAIT_SECONDS,
        "steps after the promotion",
    )
    assert [len(attempts(alice, guest)) for guest in guests] == [2, 2]

    for guest in guests:
        alice.stop(guest)
        wait_for_state(alice, guest, "stopped")

    # A holder that stops sharing keeps its devices for itself.
    second = submit(alice, "holder")
    wait_for_state(alice, second, "running")
    others = [submit(alice, "guest"), submit(alice, "guest")]
    has_run_for_a_minute(portal, second)
    for guest in others:
        wait_for_state(alice, guest, "running")
    assert alice.post(f"jobs/{second}/sharing/stop/")["stopped_at"] is not None
    check_that_they_leave(portal, alice, others)
    assert alice.get(f"jobs/{second}/sharing/")["devices"] == []
    assert alice.job(second).state == "running"


# -- what is run ---------------------------------------------------------------------------------


def submit(client: Client, name: str) -> int:
    """Submit a job of the example; returns its ID."""
    path = EXAMPLES / f"{name}.yaml"
    document = yaml.safe_load(path.read_text())
    if name != "rest":
        return client.submit(with_upload(document, [str(path)], client)).id
    # All devices beside the holder, and no waiting job that would get those of the holder.
    worker = {**document["roles"]["worker"], "instances": 1, "devices": REST_DEVICES}
    return client.submit({**document, "gang": True, "roles": {"worker": worker}}).id


def has_run_for_a_minute(portal: WholePortal, job_id: int) -> None:
    """Wait for the steps that a holder of guests needs, and set its start a minute earlier."""

    def has_steps() -> bool:
        found = portal.rows(
            "SELECT p.steps FROM scheduling_attemptprogress p"
            " JOIN scheduling_attempt a ON a.id = p.attempt_id WHERE a.job_id = ?",
            job_id,
        )
        return bool(found) and found[0]["steps"] >= 50

    wait_until(has_steps, WAIT_SECONDS, "50 steps of the holder")
    done = portal.manage(
        "shell",
        "-c",
        "from datetime import timedelta; from django.db.models import F;"
        " from scheduling.runs.models import Attempt;"
        f" Attempt.objects.filter(job_id={job_id})"
        ".update(running_at=F('running_at') - timedelta(seconds=60))",
    )
    assert done.returncode == 0, done.stderr


# -- what is found -------------------------------------------------------------------------------


def are_measured(client: Client, holder: int, guests: list[int]) -> bool:
    """Return whether each guest has a device of the holder, with its coordinator's figures."""
    found = client.get(f"jobs/{holder}/sharing/")["devices"]
    beside = {
        other["job_id"]: (other["duty"], device["baseline"], device["open"])
        for device in found
        for other in device["others"]
    }
    return sorted(beside) == guests and all(None not in figures for figures in beside.values())


def check_that_they_leave(portal: WholePortal, client: Client, guests: list[int]) -> None:
    """Wait until guests are queued; each has left its node soon after its notice."""
    for guest in guests:
        wait_for_state(client, guest, "queued")
        (row,) = portal.rows(
            "SELECT m.stop_asked_at, m.exited_at FROM scheduling_member m"
            " JOIN scheduling_attempt a ON a.id = m.attempt_id WHERE a.job_id = ?"
            " ORDER BY a.number DESC LIMIT 1",
            guest,
        )
        asked, exited = map(datetime.fromisoformat, row)
        assert (exited - asked).total_seconds() < GRACE_SECONDS + SLACK_SECONDS


def wait_for_state(client: Client, job_id: int, state: str) -> None:
    def has_it() -> bool:
        now = client.job(job_id).state
        assert now not in {"failed", "succeeded"}, log(client, job_id)
        return now == state

    wait_until(has_it, WAIT_SECONDS, f"{state} of job {job_id}", every=0.1)


def is_promoted(client: Client, job_id: int) -> bool:
    return any(event["kind"] == "promoted" for event in client.pages(f"jobs/{job_id}/events/"))


def attempts(client: Client, job_id: int) -> list[Mapping[str, Any]]:
    return list(client.pages(f"jobs/{job_id}/attempts/"))


def last_step(client: Client, job_id: int) -> int:
    steps = re.findall(r"^step (\d+)", log(client, job_id), re.MULTILINE)
    return max(map(int, steps), default=-1)


def log(client: Client, job_id: int) -> str:
    return str(client.get(f"jobs/{job_id}/logs/", role="worker", rank=0)["text"])


def page(portal: WholePortal, path: str) -> str:
    """Return a page as alice sees it in a browser."""
    password = dict(PASSWORD.findall(portal.output.read_text()))["alice"]
    with httpx.Client(base_url=portal.url, follow_redirects=True, timeout=60.0) as browser:
        browser.get("/login/")
        form = {"username": "alice", "password": password}
        form["csrfmiddlewaretoken"] = browser.cookies["csrftoken"]
        signed_in = browser.post("/login/", data=form, headers={"Referer": f"{portal.url}/login/"})
        assert signed_in.is_success, signed_in.text
        answer = browser.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text
