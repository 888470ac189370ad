"""The search through a whole log, on the page of logs."""

import dataclasses
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client

from scheduling.runs.models import Member
from tests.support.cluster_pages import HTMX, Stage, make_stage, sign_in, words_of
from workers.conf import worker_settings
from workers.models import LogStream
from workers.services import logs

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    moved = dataclasses.replace(settings.TESSERA, data_dir=tmp_path)
    monkeypatch.setattr(settings, "TESSERA", moved)
    return make_stage()


def write_log(stage: Stage, data: bytes) -> str:
    """Write the log of a running job; returns the address of its search."""
    member = Member.objects.filter(attempt__job=stage.running)[0]
    path = logs.relative_path(stage.running.pk, 1, member.role, member.rank)
    worker_settings().storage.logs.write(path, offset=0, data=data, cap_bytes=1 << 30)
    LogStream.objects.create(
        member=member, job_id=stage.running.pk, path=path, first=0, end=len(data), closed=True
    )
    return f"/jobs/{stage.running.pk}/logs/search/"


def test_the_page_of_logs_finds_lines_that_are_not_loaded(client: Client, stage: Stage) -> None:
    address = write_log(stage, b"fine\n" * 1000 + b"<b>CUDA out of memory\n" + b"fine\n" * 1000)
    sign_in(client, "alice")

    form = client.get(f"/jobs/{stage.running.pk}/logs/").content.decode()
    found = client.get(address, {"q": "cuda"}, headers=HTMX).content.decode()

    assert f'hx-get="{address}"' in form
    assert "5,000 &lt;b&gt;CUDA out of memory" in words_of(found)
    assert "10,022 of 10,022 B searched" in words_of(found)
    assert "Continue search" not in found


def test_a_long_search_goes_on_by_itself_until_something_is_found(
    client: Client, stage: Stage
) -> None:
    address = write_log(stage, (b"x" * 1023 + b"\n") * 5 * 1024 + b"needle\n")
    sign_in(client, "alice")

    first = client.get(address, {"q": "needle"}, headers=HTMX).content.decode()
    last = client.get(f"{address}?q=needle&offset={4 << 20}", headers=HTMX).content.decode()

    assert 'hx-trigger="load, click"' in first
    assert f"offset={4 << 20}" in first
    assert "5,242,880 needle" in words_of(last)
    assert "Continue search" not in last


def test_what_is_nowhere_is_reported_and_nobody_searches_for_others(
    client: Client, stage: Stage
) -> None:
    address = write_log(stage, b"secret\n")

    nothing = sign_in(client, "alice").get(address, {"q": "absent"}, headers=HTMX)
    foreign = sign_in(client, "bob").get(address, {"q": "secret"}, headers=HTMX)

    assert "No matching lines." in nothing.content.decode()
    assert foreign.status_code == 404
