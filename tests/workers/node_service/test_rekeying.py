"""Rotation of the SSH key on real SSH nodes while jobs run and the node service is killed."""

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection
from django.utils import timezone

from scheduling.clusters.models import Node
from scheduling.core.lifecycle import JobState
from scheduling.jobs.models import Job
from tenants.keyring import SshKey, forget_keys, load_keyring
from tenants.models import InstallationKey
from tenants.services.keys import store_first_key
from tessera.node import confinement
from tessera.protocol import ROOT_DIR
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import run_round
from tests.support.killable_service import Killable
from tests.support.served_node import Served, served
from tests.workers.node_service.conftest import wait_for
from tests.workers.transports.conftest import REAL
from workers.models import NodeKey

PATIENCE = 60.0


def state(job: Job) -> JobState:
    return JobState(Job.objects.unscoped().values_list("state", flat=True).get(pk=job.pk))


def authorized(node: Served) -> Path:
    return node.home / ".ssh" / "authorized_keys"


@pytest.fixture(params=REAL)
def nodes(
    request: pytest.FixtureRequest, real_database: None, tmp_path: Path, settings
) -> Iterator[list[Served]]:
    """Two nodes that accept the key in the database."""
    if connection.vendor != "sqlite":
        pytest.skip("the process under test opens a SQLite file")
    settings.TESSERA = replace(settings.TESSERA, data_dir=tmp_path)
    (tmp_path / "ssh").mkdir()
    key = SshKey.generate()
    store_first_key(
        InstallationKey.Kind.SSH, private=key.private, public=key.public, now=timezone.now()
    )
    make_priority_classes()
    with ExitStack() as stack:
        found = [stack.enter_context(served(tmp_path / n, request.param)) for n in ("n1", "n2")]
        for row, node in zip(make_cluster(nodes=2), found, strict=True):
            authorized(node).write_text(f"{key.public} tessera\n")
            declaration = node.home / ROOT_DIR / confinement.DECLARATION_FILE
            declaration.parent.mkdir(exist_ok=True)
            declaration.write_text('{"strongest": "none"}')
            Node.objects.filter(pk=row.pk).update(
                host=node.address.host, port=node.address.port, user=node.address.user,
                host_key=node.address.host_key, isolation_level="none",
            )  # fmt: skip
        make_virtual_cluster(cells=2)
        yield found


@pytest.fixture
def service(nodes: list[Served], tmp_path: Path) -> Iterator[Killable]:
    service = Killable(tmp_path)
    yield service
    service.kill()


def rotate(*arguments: str) -> str:
    out = io.StringIO()
    call_command("rotate_node_key", *arguments, stdout=out)
    return out.getvalue()


def have(nodes: list[Served], key: SshKey) -> Callable[[], bool]:
    return lambda: all(
        authorized(one).read_text().split()[1] == key.public.split()[1] for one in nodes
    )


def test_the_key_is_replaced_while_jobs_run_and_a_node_that_was_away_is_caught_up(
    nodes: list[Served], service: Killable, tmp_path: Path
) -> None:
    starts, stop = tmp_path / "starts", tmp_path / "stop"
    command = f"echo $TESSERA_JOB_ID >> {starts}; while [ ! -e {stop} ]; do sleep 0.05; done"
    jobs = [make_job(worker={"command": command, "devices": 4}) for _ in range(2)]
    run_round(timezone.now())
    service.start()
    running = {JobState.RUNNING}
    wait_for(lambda: {state(job) for job in jobs} == running, seconds=PATIENCE)
    (old,) = load_keyring().ssh_keys
    away = Node.objects.order_by("pk").last()
    assert away is not None
    Node.objects.filter(pk=away.pk).update(port=9)  # nothing listens there

    said = rotate("--wait=0")
    new = load_keyring().ssh_keys[0]
    assert new != old
    wait_for(have(nodes[:1], new), seconds=PATIENCE)
    service.kill()  # between the nodes
    wait_for(lambda: True, seconds=1)
    assert old.public in authorized(nodes[1]).read_text()
    assert away.name in rotate("--status")
    assert len(load_keyring().ssh_keys) == 2  # the node that is away still needs the old one

    Node.objects.filter(pk=away.pk).update(port=nodes[1].address.port)
    service.start()
    said += rotate(f"--wait={PATIENCE}")

    assert "every node has the current key" in said
    assert "a rotation is in progress" in said
    assert have(nodes, new)()
    assert load_keyring().ssh_keys == (new,)
    assert set(NodeKey.objects.values_list("public", "cause")) == {(new.public, "")}
    assert old.private not in said
    assert new.private not in said
    assert {state(job) for job in jobs} == running
    stop.touch()
    wait_for(
        lambda: all(Job.objects.unscoped().get(pk=job.pk).is_over for job in jobs),
        seconds=PATIENCE,
    )
    assert {state(job) for job in jobs} == {JobState.SUCCEEDED}
    assert sorted(map(int, starts.read_text().split())) == sorted(job.pk for job in jobs)


def test_a_node_whose_keys_cannot_be_changed_keeps_the_rotation_open(
    nodes: list[Served], service: Killable
) -> None:
    (old,) = load_keyring().ssh_keys
    service.start()
    wait_for(lambda: not Node.objects.filter(boot_id="").exists(), seconds=PATIENCE)
    authorized(nodes[1]).write_text("# managed elsewhere\n")

    rotate("--wait=0")
    wait_for(lambda: NodeKey.objects.exclude(cause="").exists(), seconds=PATIENCE)

    said = rotate("--status")
    assert "1 nodes do not have the new key" in said or "2 nodes do not" in said
    assert "no authorized_keys file" in said
    forget_keys()
    assert load_keyring().ssh_keys[1:] == (old,)
