"""How a directive names the GPUs of a member: by UUID, or by index where there is no other way."""

from pathlib import Path

import pytest
from django.db.models import F, Value
from django.db.models.fields import CharField
from django.db.models.functions import Cast, Concat

from scheduling.clusters.models import Device, Node
from scheduling.clusters.services.registry_logins import set_registry_login
from scheduling.runs.models import Member
from tenants.models import Tenant
from tessera.inventory import BY_CDI_INDEX, BY_CDI_UUID, BY_DEVICE_REQUEST, BY_FILES
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import ADMIN, run_round
from tests.factories.tenants import make_tenant
from workers.conf import WorkerSettings
from workers.services.dispatch import Directive, claim_directives
from workers.transports.base import Preparation

pytestmark = pytest.mark.django_db
IMAGE = {"image": "docker.io/library/python:3.11"}


@pytest.fixture(autouse=True)
def _cluster() -> None:
    make_cluster(1)
    make_priority_classes()
    make_virtual_cluster(cells=1)
    Node.objects.update(has_docker=True)
    uuid = Concat(Value("GPU-"), Cast(F("index"), CharField()))
    Device.objects.update(is_gpu=True, uuid=uuid)


def claimed(tmp_path: Path) -> Directive:
    settings = WorkerSettings(data_dir=tmp_path, installation="here")
    node = Node.objects.get()
    (directive,) = claim_directives(node_ids=[node.pk], busy=[], settings=settings, now=NOW)
    return directive


def prepared(tmp_path: Path, **role: object) -> Preparation:
    make_job(worker={"devices": 2, **role})
    run_round()
    directive = claimed(tmp_path)
    assert directive.preparation is not None
    return directive.preparation


def uuids(preparation: Preparation) -> list[str]:
    return [f"GPU-{index}" for index in preparation.run.devices]


def test_a_plain_job_sees_its_gpus_by_uuid(tmp_path: Path) -> None:
    found = prepared(tmp_path)

    assert found.run.env["CUDA_VISIBLE_DEVICES"].split(",") == uuids(found)
    assert found.container is None


def test_gpus_without_uuids_are_named_by_index(tmp_path: Path) -> None:
    Device.objects.update(uuid="", driver_index=F("index") + 10)

    found = prepared(tmp_path)

    assert found.run.gpus == [str(index + 10) for index in found.run.devices]
    assert found.run.env["CUDA_VISIBLE_DEVICES"] == ",".join(found.run.gpus)


def test_the_run_names_its_gpus_by_uuid(tmp_path: Path) -> None:
    found = prepared(tmp_path)

    assert found.run.gpus == uuids(found)


@pytest.mark.parametrize("access", ["", BY_DEVICE_REQUEST, BY_CDI_UUID])
def test_a_container_is_given_its_gpus_by_uuid(tmp_path: Path, access: str) -> None:
    Node.objects.update(inventory={"gpu_access": access})

    found = prepared(tmp_path, **IMAGE)

    assert found.container is not None
    assert list(found.container.gpus) == uuids(found)
    assert found.container.gpu_access == (access or BY_DEVICE_REQUEST)
    assert "CUDA_VISIBLE_DEVICES" not in found.run.env


def test_a_specification_that_names_gpus_by_index_gets_indices(tmp_path: Path) -> None:
    Node.objects.update(inventory={"gpu_access": BY_CDI_INDEX})
    Device.objects.update(driver_index=F("index") + 10)

    found = prepared(tmp_path, **IMAGE)

    assert found.container is not None
    assert list(found.container.gpus) == [str(index + 10) for index in found.run.devices]


@pytest.mark.parametrize("image", [{}, IMAGE])
def test_npus_are_known_by_name_and_given_to_programs_by_index(
    tmp_path: Path, image: dict[str, str]
) -> None:
    Node.objects.update(inventory={"reader": "npu-smi", "gpu_access": BY_FILES})
    Device.objects.update(driver_index=F("index") + 10)

    found = prepared(tmp_path, **image)

    assert found.run.gpus == uuids(found)
    numbers = range(2) if image else [index + 10 for index in found.run.devices]
    assert found.run.env["ASCEND_RT_VISIBLE_DEVICES"] == ",".join(map(str, numbers))


def test_a_container_on_cpu_slots_asks_for_no_gpus(tmp_path: Path) -> None:
    Device.objects.update(is_gpu=False)

    found = prepared(tmp_path, **IMAGE)

    assert found.container is not None
    assert found.container.gpus == ()
    assert found.run.env["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_a_member_whose_gpu_has_left_the_node_is_not_started_without_it(tmp_path: Path) -> None:
    make_job(worker={"devices": 2})
    run_round()
    gone = Member.objects.get().devices[1]
    Device.objects.filter(index=gone).update(retired_at=NOW)

    directive = claimed(tmp_path)

    assert directive.preparation is None
    assert directive.refusal.endswith(f"device {gone} has left its node")


@pytest.mark.parametrize(
    ("image", "host"),
    [
        ("python:3.11", "docker.io"),
        ("docker.io/library/python:3.11", "docker.io"),
        ("registry.example.org:5000/team/train:1", "registry.example.org:5000"),
    ],
)
def test_an_image_is_pulled_with_the_login_of_its_tenant_at_its_registry(
    tmp_path: Path, image: str, host: str
) -> None:
    vision, language = Tenant.objects.unscoped().get(name="vision"), make_tenant("language")
    for registry, tenant in ((host, vision), (f"other.{host}", vision), (host, language)):
        set_registry_login(
            viewer=ADMIN,
            tenant_id=tenant.pk,
            registry=registry,
            username=f"{tenant.name}-robot",
            password=f"key:{registry}",
            now=NOW,
        )

    found = prepared(tmp_path, image=image)

    assert found.container is not None
    assert found.container.login == f"vision-robot:key:{host}"
    assert "key:" not in f"{found.run.env} {found.secrets} {found.container!r}"


def test_the_login_of_a_job_comes_before_that_of_its_tenant(tmp_path: Path) -> None:
    tenant = Tenant.objects.unscoped().get(name="vision")
    set_registry_login(
        viewer=ADMIN,
        tenant_id=tenant.pk,
        registry="docker.io",
        username="robot",
        password="of-tenant",
        now=NOW,
    )

    found = prepared(tmp_path, **IMAGE, image_secret="LOGIN", secrets={"LOGIN": "alice:of-job"})

    assert found.container is not None
    assert found.container.login == "alice:of-job"
