"""OpenPAI's REST protocol: documents and calls as its clients send them, and what they read."""

import pytest
import yaml
from rest_framework.test import APIClient

from portal.api.openpai_shapes import STATES
from scheduling.core.lifecycle import JobEventKind, JobState
from scheduling.jobs.models import Job
from scheduling.jobs.services.lifecycle import try_job_event
from tenants.models import User
from tenants.roles import Scope
from tests.conftest import PROJECT_ROOT
from tests.factories.cluster import job_document, make_job
from tests.factories.tenants import make_token

JOBS = "/api/v2/jobs"
FIXTURES = PROJECT_ROOT / "tests" / "fixtures" / "importers" / "openpai"
# As OpenPAI's Python and JavaScript clients build it, with all that they fill in.
DOCUMENT = {
    "protocolVersion": 2,
    "name": "resnet_1a2b",
    "type": "job",
    "jobRetryCount": 0,
    "prerequisites": [
        {"type": "dockerimage", "uri": "registry.example/train:1", "name": "docker_image_0"}
    ],
    "taskRoles": {
        "ps_server": {
            "instances": 2,
            "completion": {"minFailedInstances": 1, "minSucceededInstances": -1},
            "taskRetryCount": 0,
            "dockerImage": "docker_image_0",
            "resourcePerInstance": {"gpu": 1, "cpu": 2, "memoryMB": 4096},
            "commands": ["python train.py"],
        }
    },
    "defaults": {"virtualCluster": "vision-a"},
    "extras": {"hivedScheduler": {"taskRoles": {"ps_server": {"skuNum": 1, "skuType": "a"}}}},
}


@pytest.fixture
def bearer(world):
    """A script with a token of ours, sent as OpenPAI's clients send theirs."""

    def client(username, *scopes):
        key = make_token(User.objects.get(username=username), *scopes).key
        made = APIClient()
        made.credentials(HTTP_AUTHORIZATION=f"Bearer {key}")
        return made

    return client


def submit(client, **changes):
    text = yaml.safe_dump({**DOCUMENT, **changes})
    return client.post(JOBS, text, content_type="text/yaml")


def refused(response, status, code):
    body = response.json()
    assert (response.status_code, body["code"]) == (status, code), body
    assert body["message"]


def test_a_document_is_submitted_and_read_back(bearer):
    client = bearer("alice", Scope.JOBS_WRITE)

    response = submit(client)

    assert (response.status_code, response.json()["status"]) == (202, 202), response.json()
    found = client.get(f"{JOBS}/alice~resnet_1a2b").json()
    status = found["jobStatus"]
    assert (found["name"], found["frameworkName"]) == ("resnet_1a2b", "alice~resnet_1a2b")
    assert (status["state"], status["subState"]) == ("WAITING", "AttemptCreationPending")
    assert (status["username"], status["virtualCluster"]) == ("alice", "vision-a")
    assert (status["executionType"], status["retries"], status["completedTime"]) == (
        "START",
        0,
        None,
    )
    role = found["taskRoles"]["ps_server"]
    assert role["taskRoleStatus"] == {"name": "ps_server"}
    assert [(t["taskIndex"], t["taskState"]) for t in role["taskStatuses"]] == [
        (0, "WAITING"),
        (1, "WAITING"),
    ]


def test_the_document_comes_back_as_it_was_sent(bearer):
    client = bearer("alice", Scope.JOBS_WRITE)
    submit(client)
    make_job("alice", name="native")

    config = client.get(f"{JOBS}/alice~resnet_1a2b/config")

    assert config.headers["Content-Type"].startswith("text/yaml")
    assert yaml.safe_load(config.content) == DOCUMENT
    refused(client.get(f"{JOBS}/alice~native/config"), 404, "NoJobConfigError")


def test_json_is_a_document_too_and_one_with_secrets_is_not_shown(bearer):
    client = bearer("alice", Scope.JOBS_WRITE)

    response = client.post(JOBS, {**DOCUMENT, "secrets": {"key": "hush"}}, format="json")

    assert response.status_code == 202, response.json()
    refused(client.get(f"{JOBS}/alice~resnet_1a2b/config"), 404, "NoJobConfigError")
    assert "hush" not in Job.objects.unscoped().get().source_text


def test_a_name_is_taken_once_and_for_each_person(bearer):
    alice = bearer("alice", Scope.JOBS_WRITE)
    submit(alice)

    refused(submit(alice), 409, "ConflictJobError")
    refused(submit(alice, jobRetryCount=1), 409, "ConflictJobError")
    other = submit(bearer("bob", Scope.JOBS_WRITE), defaults={"virtualCluster": "language-a"},
                   extras={})  # fmt: skip

    assert other.status_code == 202, other.json()
    assert Job.objects.unscoped().count() == 2


def test_refusals_have_openpais_codes(bearer):
    client = bearer("alice", Scope.JOBS_WRITE)

    refused(submit(client, protocolVersion=1), 400, "InvalidProtocolError")
    refused(submit(client, taskRoles={}), 400, "InvalidProtocolError")
    refused(submit(client, defaults={"virtualCluster": "x"}), 400, "NoVirtualClusterError")
    refused(client.post(JOBS, "a: [", content_type="text/yaml"), 400, "InvalidProtocolError")
    refused(client.get(f"{JOBS}/alice~nothing"), 404, "NoJobError")
    refused(client.get(f"{JOBS}?tagsContain=x"), 400, "InvalidParametersError")
    refused(client.get(f"{JOBS}?limit=50001"), 400, "InvalidParametersError")
    refused(client.get(f"{JOBS}?order=name,UP"), 400, "InvalidParametersError")
    refused(client.get("/api/v2/virtual-clusters/nothing"), 404, "NoVirtualClusterError")
    refused(client.get("/api/v2/alerts"), 404, "NoApiError")
    refused(APIClient().get("/api/v2/alerts"), 404, "NoApiError")
    refused(APIClient().get(JOBS), 401, "UnauthorizedUserError")
    assert not Job.objects.unscoped().exists()


def test_a_token_that_may_only_read_does_not_submit_or_stop(bearer):
    make_job("alice", name="mine")
    reader = bearer("alice", Scope.JOBS_READ)

    refused(submit(reader), 403, "ForbiddenUserError")
    response = reader.put(f"{JOBS}/alice~mine/executionType", {"value": "STOP"}, format="json")
    refused(response, 403, "ForbiddenUserError")


def test_a_job_is_stopped_and_not_started_again(bearer):
    make_job("alice", name="mine")
    client = bearer("alice", Scope.JOBS_WRITE)
    url = f"{JOBS}/alice~mine/executionType"

    refused(client.put(url, {"value": "START"}, format="json"), 400, "InvalidParametersError")
    response = client.put(url, {"value": "STOP"}, format="json")

    assert (response.status_code, response.json()["status"]) == (202, 202)
    status = client.get(f"{JOBS}/alice~mine").json()["jobStatus"]
    assert (status["state"], status["executionType"]) == ("STOPPED", "STOP")
    assert status["completedTime"] >= status["createdTime"]


def test_lists_are_narrowed_cut_and_put_in_order(bearer, now):
    for number, name in enumerate(("beta", "alpha", "gamma"), 1):
        make_job("alice", name=name, worker={"instances": number})
    gone = Job.objects.unscoped().get(name="gamma")
    try_job_event(job_id=gone.pk, event=JobEventKind.STOP, now=now)
    client = bearer("alice", Scope.JOBS_READ)

    def names(query=""):
        return [job["name"] for job in client.get(f"{JOBS}{query}").json()]

    assert names() == ["gamma", "alpha", "beta"]
    assert names("?order=jobName,ASC") == ["alpha", "beta", "gamma"]
    assert names("?order=completionTime,ASC")[0] == "gamma"
    assert names("?order=totalGpuNumber,ASC&offset=1&limit=1") == ["alpha"]
    assert names("?state=STOPPED,FAILED") == ["gamma"]
    assert names("?state=UNKNOWN") == []
    assert names("?keyword=LPH") == ["alpha"]
    assert names("?username=bob,lena") == []
    assert names("?vc=vision-a,language-a&username=alice&limit=2") == ["gamma", "alpha"]
    counted = client.get(f"{JOBS}?withTotalCount=true&limit=1").json()
    assert (counted["totalCount"], len(counted["data"])) == (3, 1)
    first = client.get(f"{JOBS}?order=submissionTime,ASC").json()[1]
    assert (first["totalTaskNumber"], first["totalGpuNumber"]) == (2, 2)
    assert (first["totalTaskRoleNumber"], first["state"]) == (1, "WAITING")


def test_jobs_of_other_tenants_are_not_there(bearer):
    make_job("bob", job_document(virtual_cluster="language-a", name="theirs"))
    alice = bearer("alice", Scope.JOBS_WRITE)

    assert alice.get(JOBS).json() == []
    assert alice.get(f"{JOBS}?username=bob&withTotalCount=true").json()["totalCount"] == 0
    refused(alice.get(f"{JOBS}/bob~theirs"), 404, "NoJobError")
    refused(alice.get(f"{JOBS}/bob~theirs/config"), 404, "NoJobError")
    stop = alice.put(f"{JOBS}/bob~theirs/executionType", {"value": "STOP"}, format="json")
    refused(stop, 404, "NoJobError")
    assert set(alice.get("/api/v2/virtual-clusters").json()) == {"vision-a"}
    response = alice.get("/api/v2/cluster/sku-types?vc=language-a")
    refused(response, 404, "NoVirtualClusterError")


def test_a_job_of_the_same_tenant_is_seen_and_left_alone(api):
    make_job("alice", name="hers")
    vera = api("vera")

    response = vera.put(f"{JOBS}/alice~hers/executionType", {"value": "STOP"}, format="json")

    assert vera.get(f"{JOBS}/alice~hers").status_code == 200
    refused(response, 403, "ForbiddenUserError")


def test_virtual_clusters_and_types_come_in_gpus_processors_and_mebibytes(bearer):
    client = bearer("alice", Scope.JOBS_READ)

    cluster = client.get("/api/v2/virtual-clusters").json()["vision-a"]
    types = client.get("/api/v2/cluster/sku-types?vc=vision-a").json()

    assert types == {"a": {"gpu": 1, "cpu": 4, "memory": 8192}}
    total = {"gpu": 8, "cpu": 32, "memory": 65536, "GPUs": 8, "vCores": 32}
    assert cluster["resourcesTotal"] == cluster["resourcesGuaranteed"] == total
    assert cluster["resourcesUsed"]["gpu"] == 0
    assert (round(cluster["capacity"]), cluster["usedCapacity"], cluster["numJobs"]) == (33, 0, 0)


@pytest.mark.parametrize(
    "url", [JOBS, "/api/v2/virtual-clusters", "/api/v2/cluster/sku-types", f"{JOBS}/alice~job-0"]
)
def test_an_answer_takes_as_many_queries_for_many_jobs(
    api, url, django_assert_max_num_queries
):  # fmt: skip
    make_job("alice", name="job-0")
    client = api("alice")
    with django_assert_max_num_queries(25) as few:
        client.get(url)
    for number in range(1, 6):
        make_job("alice", name=f"job-{number}", worker={"instances": number})

    with django_assert_max_num_queries(len(few.captured_queries)):
        assert client.get(url).status_code == 200


def test_states_are_called_as_the_documentation_says():
    text = (PROJECT_ROOT / "docs" / "compatibility.md").read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]

    written = {row[0].strip("| `"): row[2] for row in rows if row[0].strip("| `") in set(JobState)}

    assert written == dict(STATES)


@pytest.mark.parametrize("name", ["horovod", "hived-prod", "parameter-server"])
def test_documents_as_people_have_them_are_taken(bearer, name):
    document = yaml.safe_load((FIXTURES / f"{name}.yaml").read_text())
    document["defaults"] = {**document.get("defaults", {}), "virtualCluster": "vision-a"}
    for role in document.get("extras", {}).get("hivedScheduler", {}).get("taskRoles", {}).values():
        role.pop("skuType", None)
    client = bearer("alice", Scope.JOBS_WRITE)

    response = client.post(JOBS, yaml.safe_dump(document), content_type="text/yaml")

    assert response.status_code == 202, response.json()
    assert set(client.get(f"{JOBS}/alice~{document['name']}").json()["taskRoles"]) == set(
        document["taskRoles"]
    )
