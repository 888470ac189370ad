"""Finds the processes of nodes, and cuts the network between hosts and nodes."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.faults.promises import read_ledger
from tests.support.waiting import wait_until
from tests.support.whole_portal import WholePortal

NODES = ("demo-1", "demo-2", "demo-3")


def runners(portal: WholePortal) -> dict[int, str]:
    """The runners on all nodes: run ids by process id.

    A runner locks the file ``go`` of its run.
    """
    return _holders(portal, "tessera-runner", "go")


def log_writers(portal: WholePortal) -> dict[int, str]:
    """The log writers on all nodes: run ids by process id.

    A log writer locks the file ``writer`` of its run.
    """
    return _holders(portal, "tessera-log", "writer")


def _holders(portal: WholePortal, program: str, file: str) -> dict[int, str]:
    found = {}
    for pid, said in portal.processes_of_runs().items():
        if said.startswith(program):
            with suppress(OSError):
                held = [entry.readlink() for entry in Path(f"/proc/{pid}/fd").iterdir()]
                for path in held:
                    if path.name == file:
                        found[pid] = path.parent.name
    return found


def send_to_session(portal: WholePortal, node: str, number: signal.Signals) -> int:
    """Send a signal to the process on a node that answers the portal; its process id."""
    wait_until(lambda: session(portal, node) is not None, 120, f"a session on {node}")
    pid = session(portal, node)
    assert pid is not None
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    portal.note(f"{number.name} session on {node}")
    return pid


def session(portal: WholePortal, node: str) -> int | None:
    """The process on a node that answers the portal."""
    bundle = os.fsencode(portal.data / "demo" / node / "home" / ".tessera")
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            # Forked from a session, runners and log writers have its command line.
            is_other = (entry / "comm").read_text().startswith("tessera")
            is_here = any(word.startswith(bundle) for word in words)
            if any(b"serve" in word for word in words) and is_here and not is_other:
                return int(entry.name)
    return None


def runs_at_work(portal: WholePortal, node: str, ledger: Path) -> set[str]:
    """The runs on a node that have noted their start and not their end."""
    noted = read_ledger(ledger)
    ended = {line.run_id for line in noted if line.what == "end"}
    here = (portal.data / "demo" / node / "home/.tessera/runs").glob("*")
    return {path.name for path in here} & {line.run_id for line in noted} - ended


def silence_until_an_end(
    portal: WholePortal, node: str, ledger: Path, seconds: float
) -> int | None:
    """Stop the process on a node that answers the portal, and wait until a job there has ended.

    The portal observes that end when the process goes on, so the charge rests on reported times.

    Returns:
        The stopped process; None if there is no session or no job ends in time.
    """
    pid, running = session(portal, node), runs_at_work(portal, node, ledger)
    if pid is None or not running:
        return None
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(
            lambda: not running <= runs_at_work(portal, node, ledger), seconds, f"an end on {node}"
        )
    except AssertionError:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        return None
    portal.note(f"SIGSTOP session on {node} until a job ended")
    return pid


@contextmanager
def network_cut(portal: WholePortal, node: str) -> Iterator[None]:
    """Drop all packets to and from a node without notice; only root may do that."""
    place = _places(portal)[node]
    rules = [
        ["INPUT", "-p", "tcp", way, place[0], port, place[1], "-j", "DROP"]
        for way, port in (("-d", "--dport"), ("-s", "--sport"))
    ]
    portal.note(f"network of {node} cut")
    with _dropping(rules):
        yield
    portal.note(f"network of {node} restored")


@contextmanager
def cut_from_nodes(portal: WholePortal, group: int) -> Iterator[None]:
    """Drop all packets that processes of a Unix group send to nodes."""
    rules = [
        ["OUTPUT", "-p", "tcp", "-d", host, "--dport", port,
         "-m", "owner", "--gid-owner", str(group), "-j", "DROP"]
        for host, port in _places(portal).values()
    ]  # fmt: skip
    with _dropping(rules):
        yield


def can_cut() -> bool:
    """Whether this process may change the rules of its network."""
    return os.getuid() == 0 and not _failed(["iptables", "-w", "-n", "-L", "INPUT"])


def _places(portal: WholePortal) -> dict[str, tuple[str, str]]:
    listing = json.loads((portal.data / "demo" / "nodes.json").read_text())
    return {entry["name"]: (entry["host"], str(entry["port"])) for entry in listing}


@contextmanager
def _dropping(rules: Sequence[Sequence[str]]) -> Iterator[None]:
    done = []
    try:
        for rule in rules:
            if os.getuid() != 0 or _failed(["iptables", "-w", "-I", *rule]):
                pytest.skip("cutting a network needs root and iptables")
            done.append(rule)
        yield
    finally:
        for rule in done:
            subprocess.run(["iptables", "-w", "-D", *rule], check=True)


def _failed(command: list[str]) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode != 0
    except FileNotFoundError:
        return True
