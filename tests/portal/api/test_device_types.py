"""Device types by REST: aliases of admins, used by jobs and by every importer."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduling.clusters.models import Device, DeviceAlias
from scheduling.core.jobspec import parse_stored
from scheduling.jobs.models import Job
from tenants.models import AuditEntry
from tenants.roles import Scope

TYPES = "/api/v1/device-types/"
ALIASES = "/api/v1/device-aliases/"
LONG = "NVIDIA-A100-SXM4-80GB"


@pytest.fixture(autouse=True)
def a_long_name(world):
    """Give one node devices of a type with the name of a driver."""
    ids = Device.objects.filter(node__name="node-1").values("pk")
    Device.objects.filter(pk__in=ids).update(device_type=LONG)


def alias(api, name: str = "fast", kind: str = LONG, user: str = "root"):
    body = {"alias": name, "device_type": kind}
    return api(user).post(ALIASES, body, format="json")


def test_types_are_listed_with_their_names(api):
    made = alias(api)
    rows = api("alice").get(TYPES).json()["results"]

    assert made.status_code == 201
    row = next(row for row in rows if row["device_type"] == LONG)
    assert (row["nodes"], row["aliases"]) == (1, [made.json()])
    assert row["automatic"] == ["a100", "a100-80g", "a100-80gb", "a100-sxm4", "a100-sxm4-80gb"]


def test_only_admins_change_aliases_and_each_change_is_recorded(api):
    refused = alias(api, user="lena")
    made = alias(api, "Fast")
    twice = alias(api, "FAST")
    pk = made.json()["id"]
    forbidden = api("alice").delete(f"{ALIASES}{pk}/")
    deleted = api("root").delete(f"{ALIASES}{pk}/")
    again = api("root").delete(f"{ALIASES}{pk}/")

    statuses = (refused, made, twice, forbidden, deleted, again)
    assert [each.status_code for each in statuses] == [403, 201, 409, 403, 204, 404]
    assert made.json()["alias"] == "fast"
    assert not DeviceAlias.objects.exists()
    actions = AuditEntry.objects.unscoped().filter(action__startswith="device_alias")
    assert sorted(actions.values_list("action", flat=True)) == [
        "device_alias.create", "device_alias.delete",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind", "field"),
    [
        ("a b", LONG, "alias"),
        ("x" * 61, LONG, "alias"),
        ("", LONG, "alias"),
        (LONG.lower(), LONG, "alias"),
        ("fast", "no-such-type", "device_type"),
    ],
)
def test_a_fault_names_its_field(api, name, kind, field):
    answer = alias(api, name, kind)

    assert answer.status_code == 400
    assert [fault["field"] for fault in answer.json()["errors"]] == [field]


@pytest.mark.parametrize("name", [LONG, LONG.lower(), "A100", "a100-80g", "Fast"])
def test_a_job_may_use_any_name_and_stores_the_type(api, name):
    alias(api)
    job = {
        "name": "x",
        "virtual_cluster": "vision-a",
        "class": "opportunistic",
        "roles": {"worker": {"devices": 1, "device_types": [name], "command": "true"}},
    }

    answer = api("alice", Scope.JOBS_WRITE).post("/api/v1/jobs/", job, format="json")

    assert answer.status_code == 201, answer.json()
    stored = Job.objects.unscoped().get()
    assert stored.spec["roles"]["worker"]["device_types"] == [LONG]


def test_an_unknown_name_is_an_unknown_type(api):
    job = {
        "name": "x",
        "virtual_cluster": "vision-a",
        "roles": {"worker": {"devices": 1, "device_types": ["V100"], "command": "true"}},
    }

    answer = api("alice", Scope.JOBS_WRITE).post("/api/v1/jobs/", job, format="json")

    assert answer.status_code == 400
    assert answer.json()["errors"][0]["code"] == "unknown-type"


DOCUMENTS = {
    "sbatch": "#!/bin/bash\n#SBATCH -p vision-a --gres=gpu:fast:1\nsrun ./train\n",
    "dstack": "type: task\nname: x\ncommands: [./train]\nresources: {gpu: 'fast:1'}\n",
    "skypilot": "name: x\nresources: {accelerators: 'fast:1'}\nrun: ./train\n",
    "openpai": (
        "protocolVersion: 2\nname: x\ntype: job\n"
        "prerequisites: [{type: dockerimage, name: i, uri: ubuntu}]\n"
        "taskRoles: {w: {instances: 1, dockerImage: i, resourcePerInstance: "
        "{cpu: 1, memoryMB: 64, gpu: 1}, commands: [./train]}}\n"
        "defaults: {virtualCluster: vision-a}\n"
        "extras: {hivedScheduler: {taskRoles: {w: {skuType: fast, skuNum: 1}}}}\n"
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_importer_accepts_an_alias(api, name):
    alias(api)

    answer = api("alice", Scope.JOBS_WRITE).post(
        f"/api/v1/import/{name}/", DOCUMENTS[name], content_type="text/plain"
    )

    assert answer.status_code == 201, answer.json()
    (role,) = Job.objects.unscoped().get().spec["roles"].values()
    assert role["device_types"] == [LONG]


def submit(api, *names: str):
    job = {
        "name": "x",
        "virtual_cluster": "vision-a",
        "class": "opportunistic",
        "roles": {"worker": {"devices": 1, "device_types": list(names), "command": "true"}},
    }
    return api("alice", Scope.JOBS_WRITE).post("/api/v1/jobs/", job, format="json")


def test_a_name_of_more_types_than_a_job_may_list_is_cut_off(api):
    devices = Device.objects.filter(node__name="node-2").order_by("index")
    for number, device in enumerate(devices):
        Device.objects.filter(pk=device.pk).update(device_type=f"NVIDIA-A100-X{number}")
    devices = Device.objects.exclude(node__name__in=["node-1", "node-2"])
    for number, device in enumerate(devices, 8):
        Device.objects.filter(pk=device.pk).update(device_type=f"NVIDIA-A100-X{number}")
    assert Device.objects.values("device_type").distinct().count() > 16

    answer = submit(api, "a100", LONG)

    assert answer.status_code == 201, answer.json()
    job = Job.objects.unscoped().get()
    assert len(job.spec["roles"]["worker"]["device_types"]) == 16
    assert parse_stored(job.spec).roles["worker"].instances == 1


def test_aliases_are_read_once_for_any_number_of_names(api):
    alias(api)
    with CaptureQueriesContext(connection) as captured:
        submit(api, "fast", *(f"unknown-{number}" for number in range(15)))

    assert sum("scheduling_devicealias" in query["sql"] for query in captured) == 1


def test_an_alias_omits_types_that_the_cluster_no_longer_has(api):
    alias(api)
    DeviceAlias.objects.create(alias="fast", device_type="gone")

    answer = submit(api, "fast")

    assert answer.status_code == 201, answer.json()
    assert Job.objects.unscoped().get().spec["roles"]["worker"]["device_types"] == [LONG]
    DeviceAlias.objects.exclude(device_type="gone").delete()
    assert submit(api, "fast").status_code == 400
