"""The portal with an object store: errors that name the fault, health, banner, spooled rounds."""

import dataclasses
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.cache import cache
from django.test import Client

from portal import health
from scheduling.clusters.models import Node
from scheduling.jobs.models import Job, SourceArchive
from scheduling.rounds.models import Round
from scheduling.rounds.services.evidence import read_round
from scheduling.runs.models import Attempt, Member
from scheduling.storage.config import StorageConfig
from scheduling.storage.opening import open_storage
from scheduling.tasks import store_evidence
from tenants.models import User
from tests.factories.cluster import NOW, make_job
from tests.factories.scheduling import CONFIG
from tests.support.object_store import ObjectStoreServer, StoreGate, object_store, store_gate
from tests.support.waiting import wait_until
from workers.models import LogStream

__all__ = ["object_store", "store_gate"]


@pytest.fixture
def config(
    api: Any,
    object_store: ObjectStoreServer,
    store_gate: StoreGate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> StorageConfig:
    found = object_store.new_bucket(tmp_path, gate=store_gate)
    changed = dataclasses.replace(settings.TESSERA, data_dir=tmp_path, object_store=found)
    monkeypatch.setattr(settings, "TESSERA", changed)
    return found


@pytest.fixture
def job(config: StorageConfig) -> Job:
    """A running job with 10 stored bytes."""
    job = make_job("alice")
    attempt = Attempt.objects.create(
        job=job, number=1, uid="u1", round_number=1, port=15001, created_at=NOW
    )
    member = Member.objects.create(
        attempt=attempt, role="worker", rank=0, node_rank=0, node=Node.objects.all()[0],
        devices=[0], step="running", step_since=NOW,
    )  # fmt: skip
    path = f"{job.pk}/1/worker-0.log"
    open_storage(config).logs.write(path, offset=0, data=b"0123456789", cap_bytes=1 << 30)
    LogStream.objects.create(member=member, job=job, path=path, end=10)
    return job


def url(job: Job) -> str:
    return f"/api/v1/jobs/{job.pk}/logs/"


def test_a_log_is_read_from_the_store_by_its_own_tenant_only(api: Any, job: Job) -> None:
    body = api("alice").get(url(job), {"offset": 4}).json()

    assert (body["text"], body["size"], body["end"]) == ("456789", 10, False)
    assert api("bob").get(url(job)).status_code == 404


def test_a_log_is_called_unreadable_and_not_empty_while_the_store_is_away(
    api: Any, job: Job, store_gate: StoreGate, client: Client
) -> None:
    store_gate.close()

    for query in ({}, {"offset": 10}, {"q": "word"}):
        answer = api("alice").get(url(job), query)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert answer.json()["code"] == "log-unreadable"
        assert answer.json()["errors"][0]["message"] == "The object store does not respond."
    client.force_login(User.objects.get(username="alice"))
    download = client.get(f"/jobs/{job.pk}/logs/worker-0.log")
    assert download.status_code == 503
    assert b"temporarily not readable" in download.content

    store_gate.open()
    wait_until(lambda: api("alice").get(url(job)).status_code == 200, what="the log is readable")


def test_bytes_that_the_new_storage_lacks_are_named(api: Any, job: Job) -> None:
    LogStream.objects.update(end=400)

    answer = api("alice").get(url(job), {"offset": 10})

    assert (answer.status_code, answer.json()["code"]) == (503, "log-unreadable")
    assert answer.json()["errors"][0]["message"] == ("The storage has 10 of 400 bytes of the log.")


def test_an_upload_is_refused_with_a_time_to_retry_while_the_store_is_away(
    api: Any, config: StorageConfig, store_gate: StoreGate
) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("train.py"), io.BytesIO(b""))

    def upload() -> Any:
        return api("alice").post(
            "/api/v1/archives/?name=code.tgz",
            buffer.getvalue(),
            content_type="application/gzip",
        )

    store_gate.close()
    refused = upload()
    assert (refused.status_code, refused.json()["code"]) == (503, "storage-unavailable")
    assert not SourceArchive.objects.unscoped().exists()
    store_gate.open()

    wait_until(lambda: upload().status_code == 201 or upload().status_code == 200, what="upload")
    digest = SourceArchive.objects.unscoped().get().sha256
    stored = open_storage(config).fetch(f"archives/{digest}", sha256=digest)
    assert stored.read_bytes() == buffer.getvalue()


def test_health_and_the_banner_of_admins_name_the_store(
    config: StorageConfig, store_gate: StoreGate, client: Client
) -> None:
    part = client.get("/readyz").json()["parts"]["storage"]
    assert part == {"ok": True, "detail": "ok", "since": None}
    store_gate.close()
    wait_until(
        lambda: client.get("/readyz").json()["parts"]["storage"]["detail"] == "unreachable",
        what="the part fails",
    )

    answer = client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["parts"]["storage"]["since"] is not None
    assert client.get("/readyz?strict=1").status_code == 503
    for name, reads in (("root", True), ("alice", False)):
        cache.delete(health.CACHE_KEY)
        client.force_login(User.objects.get(username=name))
        page = client.get("/").content.decode()
        assert ("The object store does not respond. Jobs continue." in page) is reads
        assert config.secret_key not in page


def test_rounds_run_while_the_store_is_away_and_are_stored_later(
    config: StorageConfig, store_gate: StoreGate, api: Any
) -> None:
    from django.utils import timezone

    from scheduling.rounds.services.rounds import run_round

    store_gate.close()
    make_job("alice")
    outcome = run_round(now=timezone.now, config=CONFIG, store=store_evidence)

    assert outcome.started
    stored = Round.objects.exclude(snapshot_path="").latest("number")
    storage = open_storage(config)
    assert read_round(storage=storage, stored=stored)["result"]
    store_gate.open()
    wait_until(lambda: storage.state().spooled_bytes == 0, what="the spool is empty")
    other = open_storage(dataclasses.replace(config, data_dir=config.data_dir / "other"))
    assert read_round(storage=other, stored=stored)["result"]
