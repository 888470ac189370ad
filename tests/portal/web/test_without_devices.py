"""Pages about jobs without devices: share of a node, the job, and the check of a submit."""

import csv
import io
import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from scheduling.clusters.models import Device, Node
from scheduling.jobs.models import Job
from scheduling.usage.services.usage import sum_usage
from tenants.models import User
from tests.factories.cluster import NOW, job_document, make_job
from tests.factories.scheduling import make_two_tenants, run_round, start

pytestmark = pytest.mark.django_db
GIB = 1 << 30
ROLE = {"instances": 2, "devices": 0, "cpus": 3, "memory": "2GiB", "command": "load"}


@pytest.fixture(autouse=True)
def _cluster() -> None:
    make_two_tenants(2)


def leave_cpus() -> Node:
    node = Node.objects.get(name="node-1")
    Device.objects.filter(node=node).update(cpus=3.0, memory_bytes=6 * GIB)
    return node


def browser(username: str) -> Client:
    client = Client()
    user = User.objects.get(username=username)
    client.force_login(user, "django.contrib.auth.backends.ModelBackend")
    return client


def page(client: Client, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200
    return " ".join(response.content.decode().replace("\xa0", " ").split())


def submit(**changes: object) -> Job:
    role = {**ROLE, **changes}
    return make_job(
        "alice", {"name": "load", "virtual_cluster": "vision-a", "roles": {"loader": role}}
    )


def test_the_node_page_shows_what_is_reserved_used_and_free() -> None:
    node = leave_cpus()
    submit()
    run_round()

    shown = page(browser("alice"), reverse("node", args=[node.pk]))

    assert "Reserved for devices: 24 CPUs, 51.5 GB." in shown
    assert "Used by jobs without devices: 6 CPUs, 4.3 GB." in shown
    assert "Free for jobs without devices: 2 CPUs, 12.9 GB." in shown


def test_a_node_whose_devices_have_everything_says_so() -> None:
    node = Node.objects.get(name="node-2")

    assert "None for jobs without devices." in page(
        browser("alice"), reverse("node", args=[node.pk])
    )


def test_the_form_of_a_node_sets_and_clears_the_share() -> None:
    node = leave_cpus()
    root, address = browser("root"), reverse("node-edit", args=[node.pk])
    values = {
        "host": node.host,
        "port": node.port,
        "user": node.user,
        "labels": "",
        "version": node.version,
        "device_cpus": "2.5",
        "device_memory_bytes": "4GiB",
    }

    assert root.post(address, values).status_code == 302
    node.refresh_from_db()
    assert (node.device_cpus, node.device_memory_bytes) == (2.5, 4 * GIB)
    assert 'value="2.5"' in page(root, address)
    wrong = {**values, "version": node.version, "device_memory_bytes": "much"}
    assert root.post(address, wrong).status_code != 302
    empty = {**values, "version": node.version, "device_cpus": "", "device_memory_bytes": ""}
    assert root.post(address, empty).status_code == 302
    node.refresh_from_db()
    assert (node.device_cpus, node.device_memory_bytes) == (None, None)


@pytest.mark.parametrize("pooled", [True, False])
def test_the_job_page_shows_cpus_instead_of_devices(pooled: bool) -> None:
    if pooled:
        leave_cpus()
    job = submit()
    run_round()

    shown = page(browser("alice"), reverse("job", args=[job.pk]))

    assert "2 × 3 CPUs and 2 GiB" in shown
    assert "CPU-hours" in shown
    assert "Required devices by node" not in shown
    assert ("belong to no device" in shown) is not pooled


def test_one_cpu_is_singular() -> None:
    job = submit(instances=1, cpus=1)

    assert "1 CPU and 2 GiB" in page(browser("alice"), reverse("job", args=[job.pk]))


@pytest.mark.parametrize("by", ["job", "person", "tenant", "day"])
def test_the_file_of_usage_has_the_cpu_hours_of_jobs_without_devices(by: str) -> None:
    leave_cpus()
    job, with_devices = submit(), make_job("alice", job_document())
    start(job, with_devices, at=NOW)
    sum_usage(now=NOW + timedelta(hours=2))
    address = f"{reverse('usage-csv')}?month={NOW:%Y-%m}&by={by}"

    rows = list(csv.DictReader(io.StringIO(browser("alice").get(address).content.decode())))

    assert max(float(row["cpu_hours"]) for row in rows) == 2 * 2 * 3
    if by == "job":
        (line,) = [row for row in rows if row["job"] == str(job.pk)]
        assert (line["unit"], line["borrowed_hours"]) == ("slot", "0.0000")
        (other,) = [row for row in rows if row["job"] == str(with_devices.pk)]
        assert (other["cpu_hours"], float(other["guaranteed_hours"])) == ("0.0000", 2.0)
    empty = browser("bob").get(address).content.decode().splitlines()
    assert len(empty) == 1


def test_the_page_of_usage_shows_cpu_hours_only_if_there_are_some() -> None:
    leave_cpus()
    address = f"{reverse('usage')}?month={NOW:%Y-%m}&by=job"
    assert "CPU-hours" not in page(browser("alice"), address)

    start(submit(), at=NOW)
    sum_usage(now=NOW + timedelta(hours=2))

    shown = page(browser("alice"), address)
    assert ">CPU-hours</th>" in shown
    assert re.search(r"CPU-hours </span>12(\.0)?\s?</td>", shown)
