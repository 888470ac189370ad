"""What somebody outside can know of a running portal: REST answers, and nothing else."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tessera.client import Client
from tests.support.waiting import wait_until

SECONDS = 180.0
HOLDING = ("admitted", "starting", "running", "suspect", "preempting", "stopping")


@dataclass(frozen=True)
class Cell:
    """A physical cell: where it is, and the devices (node, index) inside it."""

    level: str
    address: str
    devices: frozenset[tuple[str, int]]


@dataclass
class Outsider:
    """Asks the portal as an admin.

    Attributes:
        token: an admin's.
    """

    url: str
    token: str

    def get(self, path: str, **parameters: Any) -> Any:
        """One answer."""
        with Client(self.url, self.token, timeout_seconds=60.0) as client:
            return client.get(path, **parameters)

    def jobs(self, name: str) -> list[dict[str, Any]]:
        """All jobs whose name begins like this, the oldest first."""
        found = self.get("jobs/", q=name, limit=200)["results"]
        return sorted(
            (job for job in found if job["name"].startswith(name)), key=lambda job: job["id"]
        )

    def job(self, name: str) -> dict[str, Any]:
        """The newest job of this name."""
        return self.jobs(name)[-1]

    def attempts(self, job: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The attempts of a job, the oldest first."""
        found: list[dict[str, Any]] = self.get(f"jobs/{job['id']}/attempts/")["results"]
        return found

    def history(self, job: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The events of a job, the oldest first."""
        found: list[dict[str, Any]] = self.get(f"jobs/{job['id']}/events/", limit=200)["results"]
        return found

    def kinds(self, job: Mapping[str, Any]) -> list[str]:
        """The kinds of the events of a job."""
        return [event["kind"] for event in self.history(job)]

    def log(self, job: Mapping[str, Any], attempt: int, rank: int = 0) -> str:
        """The log of one rank."""
        text: str = self.get(f"jobs/{job['id']}/logs/", attempt=attempt, rank=rank)["text"]
        return text

    def devices(self, job: Mapping[str, Any]) -> frozenset[tuple[str, int]]:
        """The devices of a job's newest attempt."""
        placed = self.get(f"jobs/{job['id']}/")["placement"]
        return frozenset((m["node"], index) for m in placed for index in m["devices"])

    def occupants(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Who is on each device that somebody is on."""
        return {
            (node["name"], device["index"]): device["occupant"]
            for node in self.get("cluster/")["nodes"]
            for device in node["devices"]
            if device["occupant"] is not None
        }

    def cells(self, level: str) -> list[Cell]:
        """All physical cells of a level, from the cell tree of the cluster."""
        return [
            cell
            for node in self.get("cluster/")["nodes"]
            for cell in _cells(node["cell"], node["name"])
            if cell.level == level
        ]

    def is_in_one(self, level: str, devices: frozenset[tuple[str, int]]) -> bool:
        """Whether one cell of this level holds all these devices."""
        return any(devices <= cell.devices for cell in self.cells(level))

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait until something is so."""
        wait_until(is_so, SECONDS, what)

    def wait_for(self, name: str, state: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many jobs of this name are in a state; these."""

        def found() -> list[dict[str, Any]]:
            return [job for job in self.jobs(name) if job["state"] == state]

        self.wait(f"{count} jobs {name} that are {state}", lambda: len(found()) >= count)
        return found()

    def wait_for_reason(self, name: str, code: str, count: int = 1) -> None:
        """Wait until so many jobs of this name wait for a reason."""
        self.wait(
            f"{count} jobs {name} that wait for {code}",
            lambda: (
                len([j for j in self.jobs(name) if (j["reason"] or {}).get("code") == code])
                >= count
            ),
        )

    def wait_until_empty(self) -> None:
        """Wait until no job holds or wants anything."""
        self.wait("no jobs", lambda: not self.get("jobs/", state="live", limit=1)["results"])

    def check_nothing_is_shared(self) -> None:
        """No device has been held by two attempts at one time, as the attempts tell it.

        Guests use the devices of others.
        """
        spans = [
            (device, attempt["created_at"], attempt["ended_at"] or "9999", job["id"])
            for job in self.get("jobs/", limit=200)["results"]
            if job["name"] != "lab-guest"
            for attempt in self.attempts(job)
            for member in attempt["members"]
            for device in [(member["node"], index) for index in member["devices"]]
        ]
        spans.sort()
        for one, next_one in pairwise(spans):
            assert one[0] != next_one[0] or one[2] <= next_one[1], (one, next_one)


def _cells(cell: Mapping[str, Any], node: str) -> Iterator[Cell]:
    yield Cell(cell["level"], cell["address"], frozenset(_leaves(cell, node)))
    for child in cell["children"]:
        yield from _cells(child, node)


def _leaves(cell: Mapping[str, Any], node: str) -> Iterator[tuple[str, int]]:
    if cell["device"] is not None:
        yield node, cell["device"]
    for child in cell["children"]:
        yield from _leaves(child, node)
