"""Jobs without devices by REST: submit, plan, reason, placement, share of devices, tenancy."""

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from scheduling.clusters.models import Device, Node
from scheduling.runs.models import CpuLease
from tenants.roles import Scope
from tests.factories.scheduling import run_round

JOBS = "/api/v1/jobs/"
GIB = 1 << 30


def document(cpus: float = 2, instances: int = 1, **changes: Any) -> dict[str, Any]:
    role = {
        "instances": instances,
        "devices": 0,
        "cpus": cpus,
        "memory": "2GiB",
        "command": "load",
    }
    return {"name": "load", "virtual_cluster": "vision-a", "roles": {"loader": role}, **changes}


def leave_cpus() -> Node:
    """Give the devices of node-1 less, so that 8 CPUs and 16 GiB belong to none."""
    node = Node.objects.get(name="node-1")
    Device.objects.filter(node=node).update(cpus=3.0, memory_bytes=6 * GIB)
    return node


def plan(client: Any, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post(f"{JOBS}plan/", body)
    assert response.status_code == 200, response.json()
    found: dict[str, Any] = response.json()
    return found


def test_a_plan_says_what_the_round_does(api: Any) -> None:
    leave_cpus()
    told = plan(api("alice"), document(instances=2))
    assert (told["fits"], [m["node"] for m in told["placement"]]) == ("now", ["node-1"] * 2)
    assert told["alternatives"] == []

    job = api("alice").post(JOBS, document(instances=2)).json()
    run_round(timezone.now())

    found = api("alice").get(f"{JOBS}{job['id']}/").json()
    assert found["state"] == "admitted"
    assert [m["node"] for m in found["placement"]] == ["node-1"] * 2
    assert found["cpu_seconds"] == 0.0
    assert CpuLease.objects.count() == 2


def test_a_plan_tells_later_from_never(api: Any) -> None:
    leave_cpus()
    api("alice").post(JOBS, document(cpus=7))
    run_round(timezone.now())

    later, never = plan(api("alice"), document(cpus=3)), plan(api("alice"), document(cpus=9))

    assert (later["fits"], later["reason"]["code"]) == ("later", "waiting-for-cpus")
    assert (never["fits"], never["reason"]["code"]) == ("never", "no-node-with-cpus")
    assert any("belong to no device" in one for one in never["warnings"])
    assert not any("belong to no device" in one for one in later["warnings"])


def test_the_reason_of_a_waiting_job_has_a_remedy(api: Any, problem: Callable[..., Any]) -> None:
    job = api("alice").post(JOBS, document()).json()
    run_round(timezone.now())

    why = api("alice").get(f"{JOBS}{job['id']}/why/").json()

    assert why["code"] == "no-node-with-cpus"
    assert any("device-share" in step for step in why["unblock"])
    problem(api("bob").get(f"{JOBS}{job['id']}/why/"), 404)


def test_admins_set_the_share_of_the_devices_and_all_see_the_use(
    api: Any, problem: Callable[..., Any]
) -> None:
    node = leave_cpus()
    url = f"/api/v1/nodes/{node.pk}/"
    root = api("root", Scope.NODES_ADMIN)

    changed = root.patch(
        url, {"device_cpus": 2.5, "device_memory_bytes": 4 * GIB}, format="json"
    ).json()["cpu_use"]
    assert (changed["device_cpus"], changed["device_memory_bytes"]) == (2.5, 4 * GIB)
    seen = api("alice").get(url).json()["cpu_use"]
    assert seen["pool"] == {"cpus": 8.0, "memory_bytes": 16 * GIB}
    assert seen["leased"] == {"cpus": 0.0, "memory_bytes": 0}
    body = problem(root.patch(url, {"device_cpus": -1}, format="json"), 400)
    assert [error["field"] for error in body["errors"]] == ["device_cpus"]
    problem(api("alice").patch(url, {"device_cpus": 1.0}, format="json"), 403)
    cleared = root.patch(url, {"device_cpus": None}, format="json").json()["cpu_use"]
    assert cleared["device_cpus"] is None


@pytest.mark.parametrize("field", ["cpus", "memory"])
def test_a_role_without_devices_gives_cpus_and_memory(
    api: Any, problem: Callable[..., Any], field: str
) -> None:
    body = document()
    del body["roles"]["loader"][field]

    errors = problem(api("alice").post(JOBS, body), 400)["errors"]

    assert [error["field"] for error in errors] == [f"roles.loader.{field}"]
