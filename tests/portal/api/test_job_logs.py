"""``/api/v1/jobs/{id}/logs/`` and ``/goodput/``: bytes without gaps, whole characters."""

import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone

from scheduling.clusters.models import Node
from scheduling.jobs.models import Job
from scheduling.runs.models import Attempt, Member
from scheduling.storage.base import SEGMENT_BYTES
from tenants.models import User
from tests.factories.cluster import NOW, make_job
from workers.conf import worker_settings
from workers.models import GoodputSample, LogStream
from workers.services import logs
from workers.services.dispatch import MemberRef

TEXT = "één 𝄞 line\n" * 7


@pytest.fixture
def job(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    import dataclasses

    moved = dataclasses.replace(settings.TESSERA, data_dir=tmp_path)
    monkeypatch.setattr(settings, "TESSERA", moved)
    return make_job("alice")


def member_of(job: Job, *, number: int = 1, step: str = "running") -> Member:
    ended = None if step == "running" else NOW
    attempt = Attempt.objects.create(
        job=job, number=number, uid=f"u{number}", round_number=1, port=15000 + number,
        created_at=NOW, ended_at=ended,
    )  # fmt: skip
    return Member.objects.create(
        attempt=attempt, role="worker", rank=0, node_rank=0, node=Node.objects.all()[0],
        devices=[0], step=step, step_since=NOW,
    )  # fmt: skip


def write_log(member: Member, data: bytes, *, closed: bool = False, first: int = 0) -> None:
    path = logs.relative_path(member.attempt.job_id, member.attempt.number, "worker", 0)
    worker_settings().storage.logs.write(path, offset=first, data=data, cap_bytes=1 << 30)
    LogStream.objects.create(
        member=member, job_id=member.attempt.job_id, path=path,
        first=first, end=first + len(data), closed=closed,
    )  # fmt: skip


def rank_of(member: Member) -> MemberRef:
    return MemberRef(
        member_id=member.pk, node_id=member.node_id, run_id="run", job_id=member.attempt.job_id,
        attempt_id=member.attempt_id, attempt_number=member.attempt.number, role="worker",
        rank=0, node_rank=0, gang_devices=1,
    )  # fmt: skip


def url(job: Job) -> str:
    return f"/api/v1/jobs/{job.pk}/logs/"


def test_a_job_without_an_attempt_has_an_empty_log(api: Any, job: Job) -> None:
    body = api("alice").get(url(job)).json()

    assert (body["text"], body["next_offset"], body["end"], body["size"]) == ("", 0, False, 0)


def test_bytes_are_read_as_soon_as_they_are_stored(api: Any, job: Job) -> None:
    # Live messages carry them before the row is written; who subscribes between the two reads.
    member = member_of(job)
    write_log(member, b"early")
    LogStream.objects.filter(member=member).delete()

    body = api("alice").get(url(job)).json()

    assert (body["text"], body["next_offset"], body["end"]) == ("early", 5, False)
    assert api("alice").get(url(job), {"offset": 5}).json()["text"] == ""


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 7, 64])
def test_pieces_of_any_size_join_to_the_whole_log(api: Any, job: Job, limit: int) -> None:
    write_log(member_of(job), TEXT.encode(), closed=True)
    client, offset, pieces = api("alice"), 0, []

    while True:
        body = client.get(url(job), {"offset": offset, "limit": limit}).json()
        pieces.append(body["text"])
        assert body["next_offset"] > offset
        offset = body["next_offset"]
        if body["end"]:
            break

    assert "".join(pieces) == TEXT
    assert offset == body["size"] == len(TEXT.encode())


@pytest.mark.parametrize("beyond", [1, 2, 5, 10**15])
def test_beyond_the_end_one_reads_on_from_the_end(api: Any, job: Job, beyond: int) -> None:
    write_log(member_of(job), b"abc")

    body = api("alice").get(url(job), {"offset": 3 + beyond}).json()

    assert (body["text"], body["offset"], body["next_offset"]) == ("", 3, 3)


def test_an_offset_inside_a_character_stands_for_the_next_one(api: Any, job: Job) -> None:
    write_log(member_of(job), "a𝄞b".encode())

    for offset in (2, 3, 4):
        body = api("alice").get(url(job), {"offset": offset}).json()
        assert (body["text"], body["offset"], body["next_offset"]) == ("b", 5, 6)


def test_a_character_that_is_not_whole_yet_waits_for_its_rest(api: Any, job: Job) -> None:
    write_log(member_of(job), "ab𝄞".encode()[:-1])

    body = api("alice").get(url(job)).json()

    assert (body["text"], body["next_offset"], body["end"]) == ("ab", 2, False)


def test_what_is_no_text_is_replaced_and_costs_no_byte(api: Any, job: Job) -> None:
    write_log(member_of(job), b"a\xff\x00b\xe2\x82", closed=True)

    body = api("alice").get(url(job)).json()

    assert body["text"].startswith("a\ufffd\ufffdb")
    assert (body["next_offset"], body["end"]) == (6, True)


def test_a_log_that_has_lost_its_beginning_starts_where_it_does(api: Any, job: Job) -> None:
    first = SEGMENT_BYTES
    write_log(member_of(job), b"later", first=first)

    body = api("alice").get(url(job), {"offset": 10}).json()

    assert (body["text"], body["offset"]) == ("later", first)


def test_the_newest_attempt_is_shown_and_older_ones_on_demand(api: Any, job: Job) -> None:
    write_log(member_of(job, number=1, step="released"), b"first", closed=True)
    write_log(member_of(job, number=2), b"second")

    newest = api("alice").get(url(job)).json()
    older = api("alice").get(url(job), {"attempt": 1}).json()

    assert (newest["text"], newest["attempt"], newest["end"]) == ("second", 2, False)
    assert (older["text"], older["attempt"], older["end"]) == ("first", 1, True)


@pytest.mark.parametrize(
    ("parameters", "status", "field"),
    [
        ({"role": "nobody"}, 404, "role"),
        ({"rank": 3}, 404, "rank"),
        ({"attempt": 9}, 404, "attempt"),
        ({"offset": -1}, 400, "offset"),
        ({"limit": 0}, 400, "limit"),
        ({"limit": 2**21}, 400, "limit"),
        ({"tail": 5}, 400, "tail"),
    ],
)
def test_what_is_not_there_is_named(
    api: Any, job: Job, parameters: dict[str, Any], status: int, field: str
) -> None:
    response = api("alice").get(url(job), parameters)

    assert response.status_code == status
    assert response.json()["errors"][0]["field"] == field


def test_a_log_is_read_in_a_fixed_number_of_queries(
    api: Any, job: Job, django_assert_num_queries: Any
) -> None:
    write_log(member_of(job), TEXT.encode())
    client = api("alice")

    with django_assert_num_queries(6):  # session, user, memberships, job, member, log
        client.get(url(job))


def test_goodput_is_listed_interval_by_interval(api: Any, job: Job) -> None:
    attempt = member_of(job).attempt
    for number in range(3):
        GoodputSample.objects.create(
            attempt=attempt, job=job, at=timezone.now() + timedelta(seconds=number), seconds=5,
            step=number, steps=1, samples=10, throughput=2, goodput=2, devices=1,
        )  # fmt: skip

    first = api("alice").get(f"/api/v1/jobs/{job.pk}/goodput/", {"limit": 2}).json()
    rest = api("alice").get(
        f"/api/v1/jobs/{job.pk}/goodput/", {"limit": 2, "cursor": first["next_cursor"]}
    )

    assert [row["step"] for row in (*first["results"], *rest.json()["results"])] == [0, 1, 2]
    assert first["results"][0]["goodput"] == 2
    assert first["results"][0]["attempt"] == 1


def searched(client: Any, job: Job, wanted: str, **asked: Any) -> tuple[list[Any], dict[str, Any]]:
    """All lines that are found from the beginning on, and the last answer."""
    found: list[Any] = []
    offset = -1
    body: dict[str, Any] = {"next_offset": 0, "end": False}
    while not body["end"] and body["next_offset"] > offset:
        offset = body["next_offset"]
        body = client.get(url(job), {"q": wanted, "offset": offset, **asked}).json()
        found += body["matches"]
    return found, body


@pytest.mark.parametrize("limit", [16, 40, 1 << 20])
def test_a_search_finds_each_line_once_in_stretches_of_any_size(
    api: Any, job: Job, limit: int
) -> None:
    write_log(member_of(job), b"one\nTwo ERR\nthree\nlast err", closed=True)

    found, last = searched(api("alice"), job, "err", limit=limit)

    assert found == [{"offset": 4, "text": "Two ERR"}, {"offset": 18, "text": "last err"}]
    assert (last["text"], last["end"], last["next_offset"]) == ("", True, 26)


def test_a_line_that_is_still_written_is_found_once_it_is_whole(api: Any, job: Job) -> None:
    write_log(member_of(job), b"err 1\nerr 2, going o")

    found, last = searched(api("alice"), job, "err")

    assert [hit["text"] for hit in found] == ["err 1"]
    assert (last["next_offset"], last["end"]) == (6, False)


def test_a_search_gives_at_most_two_hundred_lines_and_goes_on_behind_them(
    api: Any, job: Job
) -> None:
    write_log(member_of(job), b"hit\n" * 450, closed=True)
    client = api("alice")

    first = client.get(url(job), {"q": "hit"}).json()
    found, _ = searched(client, job, "hit")

    assert (len(first["matches"]), first["next_offset"], first["end"]) == (200, 800, False)
    assert [hit["offset"] for hit in found] == list(range(0, 1800, 4))


def test_a_search_sees_the_words_and_not_the_colours_and_cuts_long_lines(
    api: Any, job: Job
) -> None:
    line = b"x" * 5000 + b" \x1b[31mout of\x1b[0m memory" + b"y" * 5000
    write_log(member_of(job), line + b"\n", closed=True)

    found, _ = searched(api("alice"), job, "OUT OF MEMORY")

    assert found[0]["offset"] == 0
    assert " out of memoryyyy" in found[0]["text"]
    assert len(found[0]["text"]) <= 1000


@pytest.mark.parametrize("wanted", ["", "  ", "a\nb", "a\0", "x" * 201])
def test_a_search_for_nothing_or_too_much_is_refused(api: Any, job: Job, wanted: str) -> None:
    write_log(member_of(job), b"a\nb\n")

    refused = api("alice").get(url(job), {"q": wanted})

    assert refused.status_code == 400
    assert refused.json()["errors"][0]["field"] == "q"


def test_nobody_searches_the_log_of_another_tenant(api: Any, job: Job) -> None:
    write_log(member_of(job), b"secret words\n", closed=True)

    assert api("bob").get(url(job), {"q": "secret"}).status_code == 404


def test_a_host_without_the_log_names_the_one_that_has_it(api: Any, job: Job) -> None:
    member = member_of(job, step="released")
    logs.keep_log(rank_of(member), first=0, end=400, closed=True)
    LogStream.objects.update(host="gpu-b")

    answer = api("alice").get(url(job))

    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert answer.json()["code"] == "log-elsewhere"
    assert answer.json()["errors"][0]["message"] == (
        "This host has 0 of 400 bytes of the log; it is on gpu-b."
    )


def test_a_log_that_is_lost_here_is_called_missing_here(api: Any, job: Job) -> None:
    member = member_of(job, step="released")
    logs.keep_log(rank_of(member), first=0, end=400, closed=True)

    error = api("alice").get(url(job)).json()["errors"][0]

    assert error["message"].endswith(f"it is missing on {socket.gethostname()}.")


def test_what_a_host_holds_is_shown_and_the_rest_is_not_called_its_end(api: Any, job: Job) -> None:
    write_log(member_of(job, step="released"), b"held\n", closed=True)
    LogStream.objects.update(end=400, host="gpu-b")

    body = api("alice").get(url(job)).json()

    assert (body["text"], body["next_offset"], body["end"]) == ("held\n", 5, False)
    assert api("alice").get(url(job), {"offset": 5}).status_code == 503


def test_neither_a_search_nor_a_download_takes_a_missing_log_for_an_empty_one(
    api: Any, job: Job, client: Client
) -> None:
    member = member_of(job, step="released")
    logs.keep_log(rank_of(member), first=0, end=400, closed=True)
    client.force_login(User.objects.get(username="alice"))

    assert api("alice").get(url(job), {"q": "loss"}).status_code == 503
    assert client.get(f"/jobs/{job.pk}/logs/worker-0.log").status_code == 503
