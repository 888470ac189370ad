"""Node sessions of two worker processes: memory, processor time, and takeover after SIGKILL.

Run by hand: ``python -m benchmarks.sessions [--counts 100,500,1000] [--seconds 30]``; prints JSON
entries. The workers run as two hosts (separate host names) on one PostgreSQL and one Redis, with
the usual transport over SSH. The nodes are simulated by one process
(``tests.support.simulated_nodes``). Each node runs one job on its eight devices.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.entries import entry
from benchmarks.stage import ROOT, memory_bytes, prepare, processor_seconds, wait

HOSTS = ("bench-a", "bench-b")
DATABASE = "tessera_sessions"
DEVICES = 8
PATIENCE_SECONDS = 600.0
QUIET_SECONDS = 15.0
"""Delay between the last new session and a measurement."""


@dataclass
class Figures:
    """Measurements with a number of nodes.

    Attributes:
        connected: seconds until both workers carried all nodes, from a start without sessions.
        memory_mib: resident memory by worker, each with half of the sessions.
        alone_mib: resident memory of the worker that carries all sessions.
        cpu: processor seconds per second of both workers together.
        database_cpu: the same of PostgreSQL.
        taken_over: seconds from SIGKILL of a worker until the other one carried all sessions.
        takeover_cpu: processor seconds of the other worker in this time.
    """

    nodes: int
    connected: float
    memory_mib: dict[str, float]
    cpu: float
    database_cpu: float
    taken_over: float
    takeover_cpu: float
    alone_mib: float
    load: float


@dataclass
class Bench:
    """The running processes."""

    folder: Path
    environment: dict[str, str]
    database_pid: int
    workers: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    simulator: "subprocess.Popen[str] | None" = None

    def start_worker(self, host: str) -> None:
        """Start the worker of a host."""
        celery = [sys.executable, "-m", "celery", "-A", "portal.celery", "worker"]
        celery += ["--without-gossip", "--without-mingle", "--loglevel", "INFO", "--queues"]
        celery += ["nodes", "--hostname", f"nodes@{host}", "--pool", "threads", "-c", "2"]
        # A host of its own: the other worker cannot observe the end of its processes.
        inside = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
        # The soft limit of open files is that of service managers.
        inside += ["sh", "-c", 'hostname "$0"; ulimit -S -n 1024; exec "$@"', host]
        with (self.folder / f"{host}.log").open("ab") as log:
            self.workers[host] = subprocess.Popen(
                [*inside, *celery], cwd=ROOT, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def end_workers(self) -> None:
        """Kill both workers; the end of a namespace's first process ends all others."""
        for worker in self.workers.values():
            worker.kill()
            worker.wait()

    def census(self) -> dict[str, int]:
        """Return the sessions as the nodes see them."""
        assert self.simulator is not None
        assert self.simulator.stdin is not None
        assert self.simulator.stdout is not None
        self.simulator.stdin.write("\n")
        self.simulator.stdin.flush()
        found: dict[str, int] = json.loads(self.simulator.stdout.readline())
        return found

    def pid(self, host: str) -> int:
        """Return the process ID of a worker, the only child of its namespace's first process."""
        parent = self.workers[host].pid
        children = Path(f"/proc/{parent}/task/{parent}/children")
        wait(lambda: bool(children.read_text()), f"the worker of {host}")
        return int(children.read_text().split()[0])

    def memory_mib(self, host: str) -> float:
        return memory_bytes(self.pid(host)) / (1 << 20)

    def cpu_seconds(self) -> float:
        """Processor time of both workers so far."""
        return sum(processor_seconds(self.pid(host)) for host in self.workers)

    def database_seconds(self) -> float:
        """Processor time of PostgreSQL so far, with its live processes."""
        below = Path(f"/proc/{self.database_pid}/task/{self.database_pid}/children").read_text()
        pids = [self.database_pid, *map(int, below.split())]
        return sum(processor_seconds(pid) for pid in pids)


@contextlib.contextmanager
def bench(nodes: int, *, database: int, database_pid: int, broker: int) -> Iterator[Bench]:
    """Start the simulated nodes and both workers, with no row of a node.

    Args:
        nodes: number of simulated nodes.
        database: port of PostgreSQL.
        database_pid: process ID of PostgreSQL.
        broker: port of Redis.
    """
    folder = Path(tempfile.mkdtemp(prefix="tessera-bench-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        environment = prepare(
            folder,
            TESSERA_DATABASE_URL=f"postgresql://tessera@127.0.0.1:{database}/{DATABASE}",
            TESSERA_REDIS_URL=f"redis://127.0.0.1:{broker}/0",
        )
        found = Bench(folder, environment, database_pid)
        stack.callback(found.end_workers)
        found.simulator = _start_simulator(folder, nodes)
        stack.callback(found.simulator.kill)
        for host in HOSTS:
            found.start_worker(host)
        yield found


def _start_simulator(folder: Path, nodes: int) -> "subprocess.Popen[str]":
    from portal.supervisor.files import DataDir
    from tests.support.simulated_nodes import AUTHORIZED_KEYS, LISTING

    shutil.copy(DataDir(root=folder).client_public_key, folder / AUTHORIZED_KEYS)
    simulator = subprocess.Popen(
        [sys.executable, "-m", "tests.support.simulated_nodes", str(nodes), str(folder)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait((folder / LISTING).exists, "the simulated nodes")
    return simulator


def measure(counts: Sequence[int], seconds: float, **servers: int) -> tuple[list[Figures], float]:
    """Measure with growing numbers of nodes in one installation.

    Returns:
        The figures, and the resident memory of a worker without sessions in MiB.
    """
    figures = []
    with bench(max(counts), **servers) as found:
        _make_tenant(max(counts))
        wait(lambda: _live_services() == len(HOSTS), "both services", PATIENCE_SECONDS)
        idle = sum(map(found.memory_mib, HOSTS)) / len(HOSTS)
        for count in counts:
            figures.append(_measure(found, count, seconds))
            print(json.dumps(vars(figures[-1])), file=sys.stderr, flush=True)
    return figures, idle


def _measure(found: Bench, nodes: int, seconds: float) -> Figures:
    begun = time.monotonic()
    _add_nodes(found.folder, nodes)
    _wait_until_shared(found, nodes)
    connected = time.monotonic() - begun
    _fill_with_jobs(nodes)
    time.sleep(QUIET_SECONDS)
    cpu, database = found.cpu_seconds(), found.database_seconds()
    time.sleep(seconds)
    cpu, database = found.cpu_seconds() - cpu, found.database_seconds() - database
    memory = {host: found.memory_mib(host) for host in HOSTS}
    taken_over, takeover_cpu = _kill_and_wait(found, nodes)
    time.sleep(QUIET_SECONDS)
    alone = found.memory_mib(HOSTS[1])
    found.start_worker(HOSTS[0])
    _wait_until_shared(found, nodes)
    return Figures(
        nodes=nodes,
        connected=round(connected, 1),
        memory_mib={host: round(used, 1) for host, used in memory.items()},
        cpu=round(cpu / seconds, 3),
        database_cpu=round(database / seconds, 3),
        taken_over=round(taken_over, 1),
        takeover_cpu=round(takeover_cpu, 1),
        alone_mib=round(alone, 1),
        load=round(os.getloadavg()[0], 1),
    )


def _kill_and_wait(found: Bench, nodes: int) -> tuple[float, float]:
    """Kill the first worker, and wait until all sessions exist and are reconciled.

    Returns:
        The seconds, and the processor seconds of the other worker.
    """
    lost, left = HOSTS
    used = processor_seconds(found.pid(left))
    begun = time.monotonic()
    os.kill(found.pid(lost), signal.SIGKILL)
    found.workers[lost].wait()
    wait(
        lambda: found.census()["reconciled"] == nodes and _carried(left) == nodes,
        "the takeover",
        PATIENCE_SECONDS,
    )
    return time.monotonic() - begun, processor_seconds(found.pid(left)) - used


def _wait_until_shared(found: Bench, nodes: int) -> None:
    """Wait until each worker carries half of the nodes, and all sessions are reconciled."""
    half = nodes // len(HOSTS)
    wait(
        lambda: (
            all(_carried(host) == half for host in HOSTS) and found.census()["reconciled"] == nodes
        ),
        "an equal share of the nodes",
        PATIENCE_SECONDS,
    )


def _live_services() -> int:
    from workers.models import Heartbeat

    return Heartbeat.objects.filter(kind="nodes").count()


def _carried(host: str) -> int:
    """Return the number of nodes under a valid lease of a host."""
    from tenants.clock import database_now
    from workers.models import NodeLease

    leases = NodeLease.objects.filter(owner__contains=host, expires_at__gt=database_now())
    return leases.count()


def _make_tenant(nodes: int) -> None:
    from django.utils import timezone

    from tests.factories.cluster import (
        make_priority_classes,
        make_topology,
        make_virtual_cluster,
    )
    from tests.support.simulated_nodes import node_name

    make_topology([node_name(number) for number in range(nodes)], at=timezone.now())
    make_priority_classes()
    make_virtual_cluster("vision-a", cells=nodes)


def _add_nodes(folder: Path, nodes: int) -> None:
    """Create rows until there is the given number of nodes."""
    from django.utils import timezone

    from scheduling.clusters.models import Node
    from tests.factories.cluster import make_devices
    from tests.support.fake_transport import FakeNode
    from tests.support.simulated_nodes import LISTING, boot_id, node_host, node_name

    listing = json.loads((folder / LISTING).read_text())
    now = timezone.now()
    for number in range(Node.objects.count(), nodes):
        name = node_name(number)
        node = Node.objects.create(
            name=name,
            user=name,
            host=node_host(number),
            port=listing["port"],
            host_key=listing["host_key"],
            state_since=now,
            created_at=now,
            cpus=DEVICES * 4,
            memory_bytes=64 << 30,
            # As after an earlier probe: a new inventory would change the topology.
            inventory=FakeNode(boot_id=boot_id(number)).inventory().to_json(),
        )
        make_devices(node)


def _fill_with_jobs(nodes: int) -> None:
    """Let a job run on each node that has none."""
    from django.utils import timezone

    from scheduling.jobs.models import Job
    from tests.factories.scheduling import run_round

    jobs = Job.objects.unscoped()
    _submit(nodes - jobs.count())
    deadline = time.monotonic() + PATIENCE_SECONDS
    while jobs.filter(state="running").count() < nodes:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{jobs.filter(state='running').count()} of {nodes} jobs run")
        if jobs.filter(state="queued").exists():
            run_round(timezone.now())
        time.sleep(0.5)


def _submit(count: int) -> None:
    from django.utils import timezone

    from scheduling.jobs.queries.submit_context import read_submit_context
    from scheduling.jobs.services.submission import Submission, submit_jobs
    from tests.factories.tenants import make_viewer

    viewer = make_viewer("alice")
    worker = {"instances": 1, "devices": DEVICES, "command": "sleep 100000"}
    document = {"name": "bench", "virtual_cluster": "vision-a", "roles": {"worker": worker}}
    for begin in range(0, count, 100):
        submit_jobs(
            submissions=[Submission(document=document)] * min(100, count - begin),
            viewer=viewer,
            submit_context=read_submit_context(viewer=viewer, images_ignored=False),
            now=timezone.now(),
        )


def entries(figures: Sequence[Figures], idle_mib: float) -> list[dict[str, Any]]:
    """Return the entries of the results."""
    found = []
    for one in figures:
        context = f"{one.nodes} nodes with one job each, two workers, PostgreSQL"
        each = (sum(one.memory_mib.values()) - len(HOSTS) * idle_mib) / one.nodes
        for name, value, unit in (
            ("takeover", one.taken_over, "s"),
            ("takeover_cpu", one.takeover_cpu, "s"),
            ("memory_per_session", each * 1024, "KiB"),
            ("cpu_per_session", 1000 * one.cpu / one.nodes, "ms/s"),
            ("database_cpu_per_session", 1000 * one.database_cpu / one.nodes, "ms/s"),
        ):
            found.append(entry(f"sessions_{one.nodes}_{name}", value, unit, "lower", context))
    return found


def with_servers(counts: str, seconds: float) -> None:
    """Start PostgreSQL and Redis, and measure in another process.

    Their helpers import settings, which a process reads only once.
    """
    import psycopg

    from tests.support.servers import Postgres, broker

    server = Postgres()
    try:
        with psycopg.connect(
            host="127.0.0.1", port=server.port, user="tessera", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        with broker() as port:
            subprocess.run(
                [sys.executable, "-m", "benchmarks.sessions", "--counts", counts,
                 "--seconds", str(seconds), "--database", str(server.port),
                 "--database-pid", str(server.pid), "--broker", str(port)],
                cwd=ROOT, check=True,
            )  # fmt: skip
    finally:
        server.stop()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--counts", default="100,500,1000")
    parser.add_argument("--seconds", type=float, default=30.0)
    for name in ("--database", "--database-pid", "--broker"):
        parser.add_argument(name, type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.database:
        with_servers(options.counts, options.seconds)
        return
    counts = [int(word) for word in options.counts.split(",")]
    figures, idle = measure(
        counts,
        options.seconds,
        database=options.database,
        database_pid=options.database_pid,
        broker=options.broker,
    )
    print(json.dumps(entries(figures, idle), indent=2))


if __name__ == "__main__":
    main()
