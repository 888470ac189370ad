"""The examples that train together, through a whole portal and across its SSH nodes."""

import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from portal.supervisor.redis_server import NoRedisError, find_redis
from scheduling.core.performance.reverts import SECONDS_TO_JUDGE, STEPS_TO_JUDGE
from tessera.client import Client
from tests.conftest import PROJECT_ROOT
from tests.support.waiting import wait_until
from tests.support.whole_portal import WholePortal, whole_portal

pytestmark = pytest.mark.timeout(900)

RUN_SECONDS = 400.0
TORCHRUN = (
    "python3 -m torch.distributed.run"
    ' --nnodes "$WORLD_SIZE" --node-rank "$NODE_RANK" --nproc-per-node 4'
    ' --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" ddp_torch.py --steps 40'
)
WAITING = "../tests/support/waiting_training.py"
EVERY = 5
"""Steps from one of its checkpoints to the next."""
NO_TORCH = "import runpy, sys; sys.modules['torch'] = None; sys.argv[:] = sys.argv[1:];"
"""Importing PyTorch fails as if it were not there."""


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholePortal]:
    """A portal on which nothing runs: the demo's own two jobs have been stopped."""
    try:
        find_redis()
    except NoRedisError as error:
        pytest.skip(str(error))
    with whole_portal(tmp_path_factory.mktemp("examples")) as portal:
        portal.stop_examples()
        wait_until(lambda: not busy_devices(portal), RUN_SECONDS, "the end of the demo's jobs")
        yield portal


@pytest.fixture
def alice(portal: WholePortal) -> Iterator[Client]:
    with portal.client("alice") as client:
        yield client


@pytest.mark.torch
def test_eight_torch_processes_on_two_nodes_train_one_model(
    portal: WholePortal, alice: Client
) -> None:
    pytest.importorskip("torch")
    role = {"instances": 2, "devices": 4, "command": f"exec {TORCHRUN}"}
    document = gang(alice, portal, "ddp_torch.py", role)

    with one_socket_free_on_each_of_two_nodes(portal):
        job_id = run(alice, {**document, "class": "opportunistic"})

    check_gang_of_two_nodes(portal, alice, job_id, devices=4)
    logs = [log(alice, job_id, rank) for rank in range(2)]
    assert sorted(met("".join(logs))) == [(rank, 8) for rank in range(8)]
    assert [len(met(text)) for text in logs] == [4, 4]
    for text in logs:
        assert len(weights(text)) == 4
        assert sum(losses(text, step=39)) < 0.8 * sum(losses(text, step=0))
    assert len({*weights(logs[0]), *weights(logs[1])}) == 1
    check_reports(alice, job_id, steps=40, batch=512)


@pytest.mark.torch
def test_two_processes_share_a_device_when_one_has_been_measured_and_the_bits_stay(
    portal: WholePortal, alice: Client, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    decides(portal, "vision-a", "easyscale")
    # Each of four workers waits 0.4 s: twenty steps of one process take more than 30 s.
    portal.allow_checkpoints(tmp_path / "shared")
    command = "exec python3 -m tessera.train.launch waiting_training.py 100000 0.4"
    document = {
        **gang(alice, portal, WAITING, {"devices": 1, "command": command}),
        "name": "waiting",
        "elastic": {"mode": "logical_workers", "logical_workers": 4, "executors": 2},
        "checkpoint_dir": str(tmp_path / "shared"),
    }
    job_id = alice.submit(document).id

    def is_judged() -> bool:
        (job,) = portal.rows("SELECT state FROM scheduling_job WHERE id = ?", job_id)
        assert job["state"] != "failed", log(alice, job_id, 0)
        steps, seconds = progress(portal, job_id)[0]
        return steps >= STEPS_TO_JUDGE and seconds >= SECONDS_TO_JUDGE

    wait_until(is_judged, RUN_SECONDS, "the measurement of one process")
    comes_back(portal, job_id)
    enough = 2 * EVERY + max(saved(alice, job_id), default=0)
    wait_until(lambda: max(saved(alice, job_id), default=0) >= enough, RUN_SECONDS, "two more")
    # Besides those, there is the one with which it left, at whatever step that was.
    found = {step: told for step, told in saved(alice, job_id).items() if step % EVERY == 0}
    alice.stop(job_id)
    wait_until(lambda: alice.job(job_id).has_ended, RUN_SECONDS, "its end")

    attempts = alice.get(f"jobs/{job_id}/attempts/")["results"]
    assert [one["layout"] for one in attempts] == [[[4]], [[2, 2]]]
    told = [
        one["text"] for one in alice.pages(f"jobs/{job_id}/events/") if "process:" in one["text"]
    ]
    assert sorted(told) == ["Logical workers by process: 2, 2.", "Logical workers by process: 4."]
    assert all(steps > 0 and seconds > 0.0 for steps, seconds in progress(portal, job_id))
    undisturbed = trained_alone(tmp_path / "alone", steps=max(found))
    assert found == {step: undisturbed.get(step) for step in found}


@pytest.mark.torch
def test_a_hybrid_job_is_profiled_resized_and_continues_its_losses(
    portal: WholePortal, alice: Client
) -> None:
    pytest.importorskip("torch")
    command = "exec python3 -m tessera.train.launch hybrid_torch.py --steps 100000"
    document = {
        **gang(alice, portal, "hybrid_torch.py", {"devices": 4, "command": command}),
        "name": "hybrid",
        "elastic": {"mode": "hybrid", "min": 1, "max": 4},
        "parallel": {"batch": 32, "micro_batches": 4},
    }
    first = alice.submit(document).id
    wait_until(lambda: is_profiled(portal, first), RUN_SECONDS, "the profile")
    alice.stop(first)

    job_id = alice.submit(document).id
    trains_on(portal, job_id, attempts=1)
    leaves_to_be_held(portal, job_id)
    wait_until(lambda: alice.job(job_id).state == "queued", RUN_SECONDS, "its checkpoint")
    alice.post(f"jobs/{job_id}/amend/", {"changes": {"roles.worker.devices": 2}})
    alice.post(f"jobs/{job_id}/release/")
    trains_on(portal, job_id, attempts=2)
    alice.stop(job_id)
    wait_until(lambda: alice.job(job_id).has_ended, RUN_SECONDS, "its end")

    plans = portal.rows(
        "SELECT a.number, a.devices, p.source, p.predicted FROM scheduling_attempt a"
        " LEFT JOIN scheduling_attemptplan p ON p.attempt_id = a.id WHERE a.job_id = ?"
        " ORDER BY a.number",
        job_id,
    )
    assert [(row["devices"], row["source"]) for row in plans] == [
        (4, "profiled"),
        (2, "profiled"),
    ]
    assert all(row["predicted"] > 0 for row in plans)
    first_log, second_log = (
        alice.get(f"jobs/{job_id}/logs/", role="worker", rank=0, attempt=number)["text"]
        for number in (1, 2)
    )
    before, after = printed_losses(first_log), printed_losses(second_log)
    assert min(before) == 0
    assert min(after) > max(before)
    alone = printed_losses(trained_hybrid(max(after) + 1))
    for step, loss in (before | after).items():
        assert loss == pytest.approx(alone[step], rel=1e-2, abs=2e-3)


@pytest.mark.torch
def test_a_running_hybrid_job_with_a_barred_plan_restarts_under_the_next_one(
    portal: WholePortal, alice: Client
) -> None:
    pytest.importorskip("torch")
    command = "exec python3 -m tessera.train.launch hybrid_torch.py --steps 100000"
    document = {
        **gang(alice, portal, "hybrid_torch.py", {"devices": 4, "command": command}),
        "name": "slow plan",
        "parallel": {"batch": 32, "micro_batches": 4},
    }
    first = alice.submit(document).id
    wait_until(lambda: is_profiled(portal, first), RUN_SECONDS, "the profile")
    alice.stop(first)
    job_id = alice.submit(document).id
    trains_on(portal, job_id, attempts=1)
    # Each step now takes 1,000 times as long as predicted, and other plans promise as much.
    inside(
        portal,
        f"""
from scheduling.models import AttemptPlan, Job, ModelProfile
job = Job.objects.unscoped().get(pk={job_id})
for plan in AttemptPlan.objects.unscoped().filter(attempt__job=job):
    AttemptPlan.objects.unscoped().filter(pk=plan.pk).update(predicted=plan.predicted / 1000)
for profile in ModelProfile.objects.unscoped().filter(fingerprint=job.model_fingerprint):
    for row in profile.grids:
        row["step_seconds"] /= 1000
    profile.save()
""",
    )

    trains_on(portal, job_id, attempts=2)
    alice.stop(job_id)
    wait_until(lambda: alice.job(job_id).has_ended, RUN_SECONDS, "its end")

    plans = portal.rows(
        "SELECT p.plan_id, a.devices FROM scheduling_attemptplan p JOIN scheduling_attempt a"
        " ON p.attempt_id = a.id WHERE a.job_id = ? ORDER BY a.number",
        job_id,
    )
    assert [row["devices"] for row in plans] == [4, 4]
    assert len({row["plan_id"] for row in plans}) == 2
    (receipt,) = alice.get(f"jobs/{job_id}/preemptions/")["results"]
    assert receipt["rule"].startswith("Barred: a run took more than 1.5 times as long")
    assert receipt["checkpoint"] is not None
    assert "replanned" in [one["kind"] for one in alice.pages(f"jobs/{job_id}/events/")]


@pytest.mark.torch
def test_an_adaptive_job_is_profiled_before_its_policy_reads_goodputs(
    portal: WholePortal, alice: Client
) -> None:
    pytest.importorskip("torch")
    decides(portal, "vision-a", "tessera")
    command = "exec python3 -m tessera.train.launch gpt_torch.py --progress 100000"
    document = {
        **gang(alice, portal, "gpt_torch.py", {"devices": 1, "command": command}),
        "name": "adaptive",
        "elastic": {
            "mode": "adaptive_batch", "min": 1, "max": 2, "initial_batch": 64,
            "max_batch": 512, "max_local_batch": 256,
        },
    }  # fmt: skip

    job_id = alice.submit(document).id
    wait_until(lambda: is_profiled(portal, job_id), RUN_SECONDS, "the profile")
    alice.stop(job_id)
    wait_until(lambda: alice.job(job_id).has_ended, RUN_SECONDS, "its end")

    (row,) = portal.rows(
        "SELECT p.document, p.device_type, p.job_id FROM scheduling_modelprofile p"
        " JOIN scheduling_job j ON j.model_fingerprint = p.fingerprint WHERE j.id = ?",
        job_id,
    )
    found = json.loads(row["document"])
    assert [one["batch"] for one in found["points"]] == [16, 32, 64, 128, 256]
    assert row["device_type"] == "cpu-a"
    wait_until(lambda: alice.job(row["job_id"]).has_ended, RUN_SECONDS, "the profile job")
    assert alice.job(row["job_id"]).state == "succeeded"


@pytest.mark.redis
def test_a_gang_on_two_nodes_trains_without_pytorch(portal: WholePortal, alice: Client) -> None:
    script = "gang_allreduce_numpy.py"
    start = f"runpy.run_path('{script}', run_name='__main__')"
    command = f'exec python3 -c "{NO_TORCH} {start}" {script} --steps 200'
    role = {"instances": 2, "devices": 4, "command": command}
    document = gang(alice, portal, script, role)

    with one_socket_free_on_each_of_two_nodes(portal):
        job_id = run(alice, {**document, "class": "opportunistic"})

    check_gang_of_two_nodes(portal, alice, job_id, devices=4)
    logs = [log(alice, job_id, rank) for rank in range(2)]
    assert sorted(met("".join(logs))) == [(0, 2), (1, 2)]
    assert len({*weights(logs[0]), *weights(logs[1])}) == 1
    assert losses(logs[0], step=199)[0] < 0.8 * losses(logs[0], step=0)[0]
    check_reports(alice, job_id, steps=200, batch=1024)


# -- what is run ---------------------------------------------------------------------------------


def gang(
    client: Client, portal: WholePortal, script: str, role: Mapping[str, Any]
) -> dict[str, Any]:
    """A job of an example whose script is uploaded first."""
    return {
        "name": script,
        "virtual_cluster": "vision-a",
        "source": {"archive": upload(client, script)},
        "roles": {"worker": {**role, "device_types": ["cpu-a"]}},
        "retries": {"node": 0, "platform": 0},
    }


def upload(client: Client, script: str) -> str:
    """Store a script, of an example if nothing else is said, as its owner would; its digest."""
    path = PROJECT_ROOT / "examples" / script
    content = path.read_bytes()
    entry = tarfile.TarInfo(path.name)
    entry.size = len(content)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(entry, io.BytesIO(content))
    answer = client._http.post(
        "archives/",
        params={"name": f"{path.name}.tar.gz"},
        content=gzip.compress(packed.getvalue()),
        headers={"Content-Type": "application/gzip"},
    )
    assert answer.status_code in {200, 201}, answer.text
    return str(answer.json()["sha256"])


@contextmanager
def one_socket_free_on_each_of_two_nodes(portal: WholePortal) -> Iterator[None]:
    """Small jobs on both nodes of type cpu-a, so that two times four devices are on two nodes."""
    fillers = []
    for user, cluster in (("alice", "vision-a"), ("bob", "language-a")):
        role = {"command": "exec sleep 3600", "device_types": ["cpu-a"]}
        document = {"name": "filler", "virtual_cluster": cluster, "roles": {"worker": role}}
        with portal.client(user) as client:
            job_id = client.submit(document).id
            fillers.append((user, job_id))
            wait_for_state(client, job_id, "running")
    assert len({node for node, _ in busy_devices(portal)}) == 2
    yield
    for user, job_id in fillers:
        with portal.client(user) as client:
            client.stop(job_id)
    wait_until(lambda: not busy_devices(portal), RUN_SECONDS, "the end of all leases")


def run(client: Client, document: Mapping[str, Any]) -> int:
    """Submit a job and wait for its end; its id."""
    job_id = client.submit(document).id
    wait_until(lambda: client.job(job_id).has_ended, RUN_SECONDS, "the end of the gang")
    return job_id


def decides(portal: WholePortal, cluster: str, policy: str) -> None:
    """Give a virtual cluster another policy."""
    inside(
        portal,
        f"""
from scheduling.models import VirtualCluster
VirtualCluster.objects.unscoped().filter(name={cluster!r}).update(policy={policy!r})
""",
    )


def comes_back(portal: WholePortal, job_id: int) -> None:
    """Let a running job leave to start again, as for another size."""
    inside(
        portal,
        f"""
from django.utils import timezone
from scheduling.core.lifecycle import PreemptionRule
from scheduling.runs.services.stopping import preempt_job
assert preempt_job(
    job_id={job_id}, for_job=0, rule="Another size", cause=PreemptionRule.RESIZE,
    now=timezone.now(),
)
""",
    )


def inside(portal: WholePortal, code: str) -> None:
    """Run some code on an installation."""
    done = subprocess.run(
        [sys.executable, "-c", f"import django\ndjango.setup()\n{code}"],
        capture_output=True, text=True, check=False, cwd=PROJECT_ROOT, timeout=300,
        env=portal.variables(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def trained_alone(directory: Path, *, steps: int) -> dict[int, str]:
    """The hash of each checkpoint of a training that nobody disturbs, in one process."""
    reports = directory / "reports.jsonl"
    directory.mkdir()
    places = {
        "TESSERA_JOB_REPORTS": str(reports),
        "TESSERA_JOB_CHECKPOINT_DIR": str(directory / "checkpoints"),
    }
    script = PROJECT_ROOT / "examples" / WAITING
    subprocess.run(
        [sys.executable, str(script), str(steps), "0"],
        check=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT / "src"), **places},
    )  # fmt: skip
    lines = [json.loads(line) for line in reports.read_text().splitlines()]
    return {one["step"]: one["sha256"] for one in lines if one.get("event") == "checkpoint"}


def trains_on(portal: WholePortal, job_id: int, *, attempts: int) -> None:
    """Wait until an attempt has reported some steps."""

    def has_trained() -> bool:
        found = progress(portal, job_id)
        return len(found) == attempts and found[-1][0] >= 25

    wait_until(has_trained, RUN_SECONDS, f"steps of attempt {attempts}")


def is_profiled(portal: WholePortal, job_id: int) -> bool:
    """The grids of the job's model on the type cpu-a are known."""
    return bool(
        portal.rows(
            "SELECT 1 FROM scheduling_modelprofile p JOIN scheduling_job j"
            " ON j.model_fingerprint = p.fingerprint AND j.tenant_id = p.tenant_id"
            " WHERE j.id = ? AND p.measured_at IS NOT NULL",
            job_id,
        )
    )


def leaves_to_be_held(portal: WholePortal, job_id: int) -> None:
    """Let a running job leave, and hold it once it waits, so that it can be amended."""
    inside(
        portal,
        f"from scheduling.models import Job\n"
        f"Job.objects.unscoped().filter(pk={job_id}).update(held=True)",
    )
    comes_back(portal, job_id)


def trained_hybrid(steps: int) -> str:
    """The output of the example in one process that nobody disturbs."""
    plan = {"version": 1, "stages": [{"first": 0, "last": 6}], "micro_batches": 4, "batch": 32}
    script = PROJECT_ROOT / "examples" / "hybrid_torch.py"
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [sys.executable, str(script), "--steps", str(steps)],
            capture_output=True, text=True, check=True, timeout=300, cwd=directory,
            env={
                **os.environ,
                "PYTHONPATH": str(PROJECT_ROOT / "src"),
                "TESSERA_JOB_PLAN": json.dumps(plan),
                "OMP_NUM_THREADS": "1",
            },
        )  # fmt: skip
    return done.stdout


def printed_losses(text: str) -> dict[int, float]:
    """The loss of each printed step, which may have been trained twice."""
    found = re.findall(r"^step (\d+): loss ([0-9.]+)$", text, re.MULTILINE)
    return {int(step): float(loss) for step, loss in found}


# -- what is found -------------------------------------------------------------------------------


def check_gang_of_two_nodes(
    portal: WholePortal, client: Client, job_id: int, *, devices: int
) -> None:
    """It succeeded at once, on as many devices as it wanted, on two nodes."""
    said = "\n".join(log(client, job_id, rank)[-3000:] for rank in range(2))
    assert client.job(job_id).state == "succeeded", said + portal.logs()
    (attempt,) = client.get(f"jobs/{job_id}/attempts/")["results"]
    members = attempt["members"]
    assert [member["exit_code"] for member in members] == [0, 0]
    assert {member["node"] for member in members} == {"demo-1", "demo-2"}
    assert [len(member["devices"]) for member in members] == [devices, devices]
    leased = portal.rows(
        "SELECT DISTINCT l.device_id FROM scheduling_lease l"
        " JOIN scheduling_attempt a ON a.id = l.attempt_id WHERE a.job_id = ?",
        job_id,
    )
    assert len(leased) == 2 * devices


def check_reports(client: Client, job_id: int, *, steps: int, batch: int) -> None:
    """Every sample of every step has been counted, and the loss went down."""

    def samples() -> list[Mapping[str, Any]]:
        return list(client.pages(f"jobs/{job_id}/goodput/"))

    wait_until(lambda: sum(one["samples"] for one in samples()) >= steps * batch, 60, "goodput")
    found = sorted(samples(), key=lambda one: one["at"])
    assert sum(one["samples"] for one in found) == steps * batch
    assert sum(one["steps"] for one in found) == steps
    assert max(one["step"] for one in found) == steps - 1
    assert all(one["throughput"] == one["goodput"] > 0 for one in found)


def progress(portal: WholePortal, job_id: int) -> list[tuple[int, float]]:
    """Steps and seconds that each attempt has reported; one of nothing before the first."""
    rows = portal.rows(
        "SELECT p.steps, p.seconds FROM scheduling_attemptprogress p"
        " JOIN scheduling_attempt a ON a.id = p.attempt_id WHERE a.job_id = ? ORDER BY a.number",
        job_id,
    )
    return [(row["steps"], row["seconds"]) for row in rows] or [(0, 0.0)]


def saved(client: Client, job_id: int) -> dict[int, str]:
    """The hash of each checkpoint that the job has told."""
    return {one["step"]: one["sha256"] for one in client.pages(f"jobs/{job_id}/checkpoints/")}


def busy_devices(portal: WholePortal) -> list[tuple[int, int]]:
    """Node and device of every live lease."""
    rows = portal.rows(
        "SELECT d.node_id, d.id FROM scheduling_lease l JOIN scheduling_device d"
        " ON d.id = l.device_id WHERE l.released_at IS NULL"
    )
    return [(row["node_id"], row["id"]) for row in rows]


def wait_for_state(client: Client, job_id: int, state: str) -> None:
    wait_until(lambda: client.job(job_id).state == state, RUN_SECONDS, f"{state} of job {job_id}")


def log(client: Client, job_id: int, rank: int) -> str:
    return "".join(client.follow_logs(job_id, role="worker", rank=rank))


def met(text: str) -> list[tuple[int, int]]:
    found = re.findall(r"rank (\d+) of (\d+) met the others", text)
    return [(int(rank), int(size)) for rank, size in found]


def weights(text: str) -> list[str]:
    return re.findall(r"^weights ([0-9a-f]{16})$", text, re.MULTILINE)


def losses(text: str, *, step: int) -> list[float]:
    line = re.compile(rf"^step {step} loss ([0-9.]+)", re.MULTILINE)
    return [float(found) for found in line.findall(text)]
