"""A control plane without a portal in a separate folder: Redis, workers, three SSH nodes."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 60.0


@dataclass(frozen=True)
class Stage:
    """A running stage, with ``pids`` by process name."""

    data_dir: Path
    pids: Mapping[str, int]

    def memory_mib(self, name: str) -> float:
        """Proportional memory of a process and its children."""
        return sum(memory_bytes(pid) for pid in _with_children(self.pids[name])) / (1 << 20)

    def cpu_seconds(self, name: str) -> float:
        """Processor time of a process and its children so far, including ended ones."""
        return sum(processor_seconds(pid) for pid in _with_children(self.pids[name]))


@contextlib.contextmanager
def stage(
    *, virtual_cluster: str = "vision-a", keep: bool = False, isolation: str = ""
) -> Iterator[Stage]:
    """Start everything, with all devices guaranteed to one virtual cluster of tenant ``vision``.

    The nodes offer ``isolation`` at most; if it is empty, their best level.

    This process's environment and Django settings are set for the new installation, so that jobs
    can be submitted through the services. One process can do so once.
    """
    folder = Path(tempfile.mkdtemp(prefix="tessera-bench-"))
    children: list[subprocess.Popen[bytes]] = []
    try:
        environment = prepare(folder)
        pids = _start_all(folder, environment, children, isolation)
        _make_rows(folder, virtual_cluster)
        yield Stage(folder, pids)
    finally:
        _end(children)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def prepare(folder: Path, **variables: str) -> dict[str, str]:
    """Set this process up for an installation in ``folder``; returns its environment.

    Args:
        folder: the data directory.
        variables: further environment variables.
    """
    socket = folder / "redis.sock"
    for name in [name for name in os.environ if name.startswith("TESSERA_")]:
        del os.environ[name]
    os.environ |= {
        "TESSERA_DATA_DIR": str(folder),
        "TESSERA_REDIS_URL": f"unix://{socket}",
        "TESSERA_SECRET_KEY": "bench" * 10,
        "DJANGO_SETTINGS_MODULE": "portal.settings",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
        **variables,
    }
    import django

    django.setup()
    from django.core.management import call_command

    from portal.supervisor.files import DataDir

    DataDir(root=folder).prepare()
    call_command("migrate", verbosity=0)
    return dict(os.environ)


def _start_all(
    folder: Path,
    environment: dict[str, str],
    children: list["subprocess.Popen[bytes]"],
    isolation: str,
) -> dict[str, int]:
    from portal.supervisor.files import DataDir
    from portal.supervisor.redis_server import find_redis, redis_command

    def start(name: str, *command: str) -> int:
        log = (folder / f"{name}.log").open("wb")
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        children.append(child)
        return child.pid

    python, data = sys.executable, DataDir(root=folder)
    socket = folder / "redis.sock"
    pids = {"redis": start("redis", *redis_command(find_redis(), folder, socket))}
    wait(socket.exists, "Redis")
    demo = (python, "-m", "demo.nodes", str(folder / "demo"))
    key = ("--authorized-key", str(data.client_public_key))
    pids["demo-nodes"] = start("demo", *demo, *key, "--isolation", isolation)
    wait((folder / "demo" / "nodes.json").exists, "the nodes")
    celery = (python, "-m", "celery", "-A", "portal.celery", "worker", "--without-gossip")
    worker = (*celery, "--without-mingle", "--loglevel", "INFO", "--queues")
    pids["rounds"] = start("rounds", *worker, "rounds", "--hostname", "rounds@b", "-c", "1")
    pids["nodes"] = start(
        "nodes", *worker, "nodes", "--hostname", "nodes@b", "--pool", "threads", "-c", "2"
    )
    return pids


def _make_rows(folder: Path, virtual_cluster: str) -> None:
    from django.utils import timezone

    from scheduling.clusters.models import Node
    from tests.factories.cluster import (
        make_devices,
        make_priority_classes,
        make_topology,
        make_virtual_cluster,
    )

    now = timezone.now()
    listing = json.loads((folder / "demo" / "nodes.json").read_text())
    make_topology([entry["name"] for entry in listing], at=now)
    for entry in listing:
        node = Node.objects.create(
            **{name: entry[name] for name in ("name", "host", "port", "user", "host_key")},
            state_since=now,
            created_at=now,
            cpus=32,
            memory_bytes=64 << 30,
        )
        make_devices(node)
    make_priority_classes()
    make_virtual_cluster(virtual_cluster, cells=len(listing))
    wait(lambda: Node.objects.filter(state="ready").count() == len(listing), "nodes to be carried")


def wait(condition: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.02)


def _end(children: list["subprocess.Popen[bytes]"]) -> None:
    for child in reversed(children):
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGTERM)
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _with_children(pid: int) -> list[int]:
    found = [pid]
    try:
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return found
    for child in below:
        found += _with_children(int(child))
    return found


def memory_bytes(pid: int) -> int:
    """Return the memory of a process in bytes; pages that processes share count once in total."""
    try:
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(row.split()[1]) << 10 for row in rows if row.startswith("Pss:"))


def processor_seconds(pid: int) -> float:
    """Return the processor seconds of a process and its reaped children."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    ticks = line[line.rindex(")") + 2 :].split()[11:15]
    return sum(int(value) for value in ticks) / os.sysconf("SC_CLK_TCK")
