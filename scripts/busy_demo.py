"""Fills the demo cluster of a fresh portal with realistic activity through its REST API.

People of three kinds, jobs that train, wait for many reasons, borrow and fail, and changes of
leads and admins: budgets, rules, shadow policies, an announcement, a what-if.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx

SCOPES: Final = (
    "audit:read",
    "jobs:read",
    "jobs:write",
    "nodes:admin",
    "tenant:admin",
    "vc:admin",
)
PASSWORDS: Final = {
    "carol": "seven-quiet-herons",
    "dave": "nine-paper-lanterns",
    "erin": "two-slow-tides",
}
ENDED: Final = frozenset({"succeeded", "failed", "stopped"})
TRAIN: Final = """\
python3 -u - <<'END'
import math, time
from tessera import train
state = train.resume() or {"step": 0}
for step in range(state["step"], 5000):
    time.sleep(0.25 + 0.05 * math.sin(step / 9))
    loss = 0.3 + 4 * math.exp(-step / 90) + 0.05 * math.sin(step)
    train.report(step=step, samples=256, step_seconds=0.25 + 0.05 * math.sin(step / 9), loss=loss)
    print(f"step {step} loss {loss:.4f}", flush=True)
    if train.should_yield() or step % 200 == 199:
        train.checkpoint({"step": step + 1}, step=step + 1)
        print(f"saved step {step + 1}", flush=True)
    if train.should_yield():
        break
END
"""
WAITING: Final = "state=queued&virtual_cluster=vision-a"
SERVE: Final = "echo ready to serve; while true; do sleep 5; echo answered 40 requests; done"
TRACEBACK: Final = """\
echo reading configs/vit.yaml
echo 'Traceback (most recent call last):' >&2
echo 'KeyError: "learning_rate"' >&2
exit 1
"""


@dataclass
class Api:
    """REST client of one person."""

    client: httpx.Client = field(repr=False)

    def get(self, path: str) -> Any:
        """The document at an address."""
        return self.client.get(path).raise_for_status().json()

    def send(self, path: str, body: Mapping[str, Any] | None = None, method: str = "POST") -> Any:
        """Send a change; raises with the portal's message on a refusal."""
        answer = self.client.request(method, path, json=body or {})
        if answer.is_error:
            raise RuntimeError(f"{method} {path}: {answer.text}")
        return answer.json() if answer.content else None

    def change(self, path: str, body: Mapping[str, Any]) -> Any:
        """Patch the current version of a row."""
        tag = self.client.get(path).raise_for_status().headers.get("ETag")
        headers = {"If-Match": tag} if tag else {}
        answer = self.client.patch(path, json=body, headers=headers)
        if answer.is_error:
            raise RuntimeError(f"PATCH {path}: {answer.text}")
        return answer.json()

    def submit(self, name: str, cluster: str, **more: Any) -> int:
        """Submit a job of one role; returns its number."""
        role = {key: more.pop(key) for key in ("instances", "devices", "within") if key in more}
        role["command"] = more.pop("command", SERVE)
        body = {"name": name, "virtual_cluster": cluster, "roles": {"worker": role}, **more}
        return int(self.send("jobs/", body)["id"])


@contextmanager
def signed_in(url: str, user: str, password: str, scopes: tuple[str, ...]) -> Iterator[Api]:
    """One person with a token of these scopes."""
    body = {"name": "laptop", "scopes": list(scopes), "expires_in_days": 30}
    answer = httpx.post(
        f"{url}/api/v1/tokens/", json=body, auth=(user, password), timeout=60, trust_env=False
    )
    key = answer.raise_for_status().json()["key"]
    headers = {"Authorization": f"Token {key}"}
    with httpx.Client(
        base_url=f"{url}/api/v1/", headers=headers, timeout=60, trust_env=False
    ) as client:
        yield Api(client)


def make_busy(url: str, logins: Mapping[str, str]) -> None:
    """Fill the demo at ``url``.

    Args:
        url: of the portal.
        logins: passwords of ``admin``, ``alice`` and ``bob``.
    """
    jobs = ("jobs:read", "jobs:write")
    with ExitStack() as stack:

        def enter(user: str, password: str, *scopes: str) -> Api:
            return stack.enter_context(signed_in(url, user, password, scopes))

        admin = enter("admin", logins["admin"], *SCOPES)
        _make_people(admin)
        for username, password in PASSWORDS.items():
            _choose_password(url, ("admin", logins["admin"]), username, password)
        _set_shares(admin)
        alice = enter("alice", logins["alice"], *jobs)
        bob = enter("bob", logins["bob"], *jobs, "tenant:admin")
        carol = enter("carol", PASSWORDS["carol"], *jobs, "tenant:admin")
        dave = enter("dave", PASSWORDS["dave"], *jobs)
        _let_jobs_run(alice, bob, carol, dave)
        _let_jobs_wait(alice, bob, dave)
        _keep_things(alice, carol, admin)
        _leave_traces(admin)


def _make_people(admin: Api) -> None:
    for username in ("carol", "dave", "erin"):
        admin.send("users/", {"username": username, "email": f"{username}@example.org"})
    for tenant, username, role, most in (
        ("vision", "carol", "lead", None),
        ("vision", "dave", "member", 2),
        ("language", "erin", "viewer", None),
    ):
        body = {"tenant": tenant, "username": username, "role": role, "max_devices": most}
        admin.send("members/", body)
    budgets = {"vision": 2400, "language": 900}
    for tenant in admin.get("tenants/")["results"]:
        hours = {"gpu_hours_per_month": budgets[tenant["name"]]}
        admin.send(f"tenants/{tenant['id']}/budget/", hours, "PUT")


def _choose_password(url: str, admin: tuple[str, str], username: str, password: str) -> None:
    """Set the first password of a person with a one-time link, as the person would."""
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as browser:
        body = {"username": username}
        link = browser.post("/api/v1/password-links/", json=body, auth=admin)
        page = link.raise_for_status().json()["url"]
        browser.get(page).raise_for_status()
        form = {
            "password": password,
            "repeated": password,
            "csrfmiddlewaretoken": browser.cookies["csrftoken"],
        }
        answer = browser.post(page, data=form, headers={"Referer": page})
        if not answer.is_redirect:
            raise RuntimeError(f"the password of {username} was refused: {answer.text}")


def _set_shares(admin: Api) -> None:
    ids = {row["name"]: row["id"] for row in admin.get("virtual-clusters/")["results"]}
    fair = [{"policy": "srtf", "policy_args": {}}, {"policy": "tiresias", "policy_args": {}}]
    admin.change(f"virtual-clusters/{ids['vision-a']}/", {"shadows": fair, "note": "Training"})
    admin.change(f"virtual-clusters/{ids['language-a']}/", {"policy": "tiresias"})
    admin.change(f"virtual-clusters/{ids['vision-b']}/", {"max_devices_per_user": 2})
    idle = {"below": 5, "warn_after": 3600, "stop_after": 7200}
    admin.send(f"virtual-clusters/{ids['vision-b']}/idle-policy/", idle, "PUT")


def _let_jobs_run(alice: Api, bob: Api, carol: Api, dave: Api) -> None:
    carol.submit("resnet-50 baseline", "vision-a", devices=4, within="socket", command=TRAIN)
    alice.submit("vit-small ablation", "vision-a", devices=2, command=TRAIN, labels={"run": "7"})
    alice.submit("feature cache", "vision-a", devices=1)
    alice.submit("segmentation demo", "vision-b", devices=1, priority="prod")
    bob.submit("tokenizer", "language-a", devices=1, command="echo merged 32,000 pairs")
    bob.submit("7b finetune", "language-a", devices=2, command=TRAIN)
    dave.submit("hpo scout", "vision-a", devices=2, **{"class": "opportunistic"}, command=TRAIN)
    bob.submit("perplexity sweep", "language-a", devices=1, **{"class": "opportunistic"})
    alice.submit("broken config", "vision-a", devices=1, command=TRACEBACK)
    stopped = alice.submit("wrong dataset", "vision-a", devices=1)
    for number in range(6):
        alice.submit(f"nightly eval {number + 1}", "vision-b", command="sleep 12; echo top-1 76.1")
    alice.send(f"jobs/{stopped}/stop/", {"message": "It read the old data set."})


def _let_jobs_wait(alice: Api, bob: Api, dave: Api) -> None:
    alice.submit("vit-large pretraining", "vision-a", devices=8, within="node", command=TRAIN)
    alice.submit("detector, two sockets", "vision-a", instances=2, devices=4, within="socket")
    held = alice.submit("release candidate", "vision-a", devices=2, held=True)
    alice.submit("publish weights", "vision-a", after=[held])
    tomorrow = (datetime.now(UTC) + timedelta(hours=14)).isoformat(timespec="minutes")
    bob.submit("weekly crawl", "language-a", devices=2, not_before=tomorrow)
    bob.submit("13b pretraining", "language-a", instances=2, devices=2, priority="prod")
    dave.submit("pose estimation", "vision-a", devices=2)


def _keep_things(alice: Api, carol: Api, admin: Api) -> None:
    role = {"devices": 1, "command": 'echo "learning rate $LR, seed $SEED"; sleep 2'}
    job = {"name": "rate and seed", "virtual_cluster": "vision-b", "roles": {"worker": role}}
    grid = {"LR": ["0.1", "0.03", "0.01"], "SEED": ["1", "2", "3"]}
    alice.send("sweeps/", {"job": job, "parameters": grid, "max_parallel": 1})
    text = (
        "name: nightly eval\nvirtual_cluster: vision-b\n"
        "roles:\n  worker:\n    command: python3 evaluate.py --all\n"
    )
    alice.send("job-templates/", {"name": "Nightly evaluation", "text": text})
    carol.send(
        "job-templates/",
        {"name": "Vision baseline", "text": text, "tenant": "vision", "note": "For new members"},
    )
    for person in (alice, admin):
        person.send("saved-views/", {"name": "Waiting in vision-a", "query": WAITING})


def _leave_traces(admin: Api) -> None:
    soon = (datetime.now(UTC) + timedelta(days=6)).isoformat(timespec="minutes")
    admin.send(
        "announcements/",
        {"text": "Power works in rack demo on Friday from 18:00 UTC.", "ends_at": soon},
    )
    hook = {
        "name": "Chat",
        "url": "https://chat.example.org/hooks/gpu",
        "events": ["job.failed", "job.preempted", "node.down"],
    }
    admin.send("webhooks/", hook)
    admin.send(
        "log-rules/",
        {"name": "Device lost", "pattern": "fell off the bus", "action": "exclude-node"},
    )
    node = admin.get("nodes/")["results"][-1]["id"]
    admin.send(f"nodes/{node}/cordon/", {"reason": "A fan is loud."})
    admin.send(f"nodes/{node}/uncordon/")
    since = (datetime.now(UTC) - timedelta(hours=2)).isoformat(timespec="seconds")
    admin.send("what-if/", {"virtual_cluster": "vision-a", "policy": "srtf", "since": since})


def wait_until_busy(url: str, logins: Mapping[str, str], seconds: float = 120.0) -> None:
    """Wait until enough jobs have started and ended for the pages."""
    deadline = time.monotonic() + seconds
    with signed_in(url, "admin", logins["admin"], ("jobs:read",)) as admin:
        while time.monotonic() < deadline:
            states = [job["state"] for job in admin.get("jobs/?limit=200")["results"]]
            if states.count("running") >= 6 and states.count("succeeded") >= 2:
                return
            time.sleep(1)


def end_jobs(url: str, logins: Mapping[str, str], seconds: float = 60.0) -> None:
    """Stop all live jobs, since jobs outlive their portal."""
    deadline = time.monotonic() + seconds
    with signed_in(url, "admin", logins["admin"], ("jobs:read", "jobs:write")) as admin:
        while time.monotonic() < deadline:
            jobs = admin.get("jobs/?limit=200")["results"]
            left = [job for job in jobs if job["state"] not in ENDED]
            for job in left:
                if job["state"] != "stopping":
                    admin.client.post(f"jobs/{job['id']}/stop/", json={})
            if not left:
                return
            time.sleep(1)
