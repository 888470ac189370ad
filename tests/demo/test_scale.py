"""A large installation of made content, here a small one."""

from dataclasses import replace

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from scheduling.clusters.models import Device, Node
from scheduling.jobs.models import Job
from scheduling.maintenance.invariants import violations
from scheduling.runs.models import Lease
from tenants.clock import database_now
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from workers.services.unattended import uncarried

pytestmark = pytest.mark.django_db
SMALL = {"nodes": 20, "live": 60, "finished": 2_000}


def test_it_makes_what_was_asked_for_and_real_rounds_place_it(
    settings, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.TESSERA = replace(settings.TESSERA, data_dir=tmp_path)

    call_command("seed_scale", **SMALL)

    live = Job.objects.unscoped().exclude(state="succeeded")
    held = Lease.objects.filter(released_at=None)
    assert (Node.objects.count(), Device.objects.count()) == (20, 160)
    assert live.count() == 60
    assert Job.objects.unscoped().filter(state="succeeded").count() == 2_000
    assert held.values("device").distinct().count() == held.count() > 100
    assert set(live.values_list("state", flat=True)) == {"queued", "running"}
    assert violations() == ()
    assert not uncarried(database_now()).exists(), "they would become suspect one by one"
    assert "Account alice: " in capsys.readouterr().out
    with pytest.raises(CommandError, match="filled before"):
        call_command("seed_scale", **SMALL, force=True)


def test_it_leaves_an_installation_with_real_jobs_alone() -> None:
    make_cluster(1)
    make_priority_classes()
    make_virtual_cluster()
    make_job()

    with pytest.raises(CommandError, match="no changes were made"):
        call_command("seed_scale", **SMALL)

    assert (Node.objects.count(), Job.objects.unscoped().count()) == (1, 1)
