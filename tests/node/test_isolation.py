"""Two tenants' jobs meet on one node, and one attacks the other and the node, at every level."""

import ctypes
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import attacks
import pytest
from session import ALICE, BOB, ORDINARY, ROOT, RUNNER, Session, make_spec, node, wait_until
from session import PLACES as SANDBOXES

from tessera import protocol
from tessera.isolation import NONE, USER
from tessera.node import system
from tessera.protocol import RunSpec, RunStatus

PLACES = [*SANDBOXES, (NONE, ROOT), (NONE, ORDINARY)]
SEGMENT = 0x7E550000 | (os.getpid() & 0xFFFF)  # no other test run has it
FORGED = '{"step": 666}\n'
VICTIM = """
echo log-of-bob
echo checkpoint-of-bob > "$TESSERA_JOB_CHECKPOINT_DIR/weights"
echo code-of-bob > code.py
echo temporary-of-bob > /tmp/of-bob
echo shm-of-bob > /dev/shm/of-bob
echo '{"step": 1}' >> "$TESSERA_JOB_REPORTS"
exec python3 -u victim.py
"""
VICTIM_SCRIPT = f"""
import ctypes, os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: print("hit"))
signal.signal(signal.SIGTERM, lambda *_: (print("intact"), os._exit(7)))
ctypes.CDLL(None).shmget({SEGMENT}, 4096, 0o1666)
print("up")
while True:
    signal.pause()
"""
READS = {f"read-{name}" for name in attacks.MARKERS}
EVERYTHING = sorted({*READS, *attacks.ATTEMPTS})


@dataclass(frozen=True)
class Outcome:
    """How one attack has gone.

    Attributes:
        done: the names of what has succeeded.
        victim, attacker: their states while both ran.
        log, reports: of the victim.
        end: of the victim, which was stopped after the attack.
    """

    done: set[str]
    victim: RunStatus
    attacker: RunStatus
    log: str
    reports: str
    end: RunStatus


@pytest.fixture(scope="module", params=PLACES, ids="-".join)
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, Session]]:
    """A node of one level, with its session."""
    level, account = request.param
    with node(level, account) as session:
        yield level, account, session


@pytest.fixture(scope="module")
def outcome(place: tuple[str, str, Session]) -> Iterator[Outcome]:
    """What Alice's job has achieved against Bob's, which ran on the same node."""
    level, account, session = place
    with ExitStack() as stack:
        outside = Path(tempfile.mkdtemp(prefix="tessera-outside-"))
        stack.callback(shutil.rmtree, outside, ignore_errors=True)
        uid = RUNNER if account != ROOT and os.getuid() == 0 else os.getuid()
        for name in ("engine", "agent"):
            line = stack.enter_context(socket.socket(socket.AF_UNIX))
            line.bind(str(outside / name))
            line.listen(8)
        (outside / "secret_key").write_text("portal-key-of-bob")
        for path in (outside, *outside.iterdir()):
            os.chown(path, uid, -1)
        victim = start_victim(session, level)
        yield attacked(session, level, victim, outside)
        for path in (Path("/tmp/of-bob"), Path("/dev/shm/of-bob")):
            path.unlink(missing_ok=True)
        remove_segment()


def remove_segment() -> None:
    """Remove the segment that a victim without isolation has left on this machine."""
    libc = ctypes.CDLL(None)
    found = libc.shmget(SEGMENT, 0, 0)
    if found >= 0:
        libc.shmctl(found, 0, None)


def start_victim(session: Session, level: str) -> RunSpec:
    """Start Bob's job."""
    spec = spec_of("bob", level, VICTIM, env={"PRIVATE": "environ-of-bob"})
    session.prepare(spec, WANDB="secret-of-bob")
    (session.directory(spec) / "work" / "victim.py").write_text(VICTIM_SCRIPT)
    session.go(spec)
    wait_until(lambda: session.log(spec).endswith("up\n"), "the victim is up")
    wait_until(lambda: session.log(spec, protocol.STREAM_REPORTS), "its report")
    return spec


def spec_of(tenant: str, level: str, command: str, **changes: object) -> RunSpec:
    uid = {"alice": ALICE, "bob": BOB}[tenant] if level == USER else None
    fields = {"job_id": tenant, "isolation": level, "uid": uid, "memory_bytes": 256 << 20}
    return make_spec(command, **{**fields, **changes})


def attacked(session: Session, level: str, victim: RunSpec, outside: Path) -> Outcome:
    """Let Alice's job attack Bob's."""
    spec = spec_of("alice", level, "exec python3 attacks.py known.json")
    session.prepare(spec)
    work = session.directory(spec) / "work"
    shutil.copy(Path(attacks.__file__), work / "attacks.py")
    (work / "known.json").write_text(json.dumps(knowledge(session, level, victim, outside)))
    running = session.status(victim)
    attacker = session.go(spec)
    session.exit_of(spec, 120)
    still = session.status(victim)
    assert (running.phase, attacker.phase, still.phase) == ("running",) * 3, session.log(spec)
    found = json.loads(session.log(spec).splitlines()[-1])
    session.ask("stop", run_id=victim.run_id, grace_seconds=30, reason="user")
    end = session.exit_of(victim)
    log, reports = (session.log(victim, stream) for stream in ("log", "reports"))
    return Outcome(set(found), still, attacker, log, reports, end)


def knowledge(session: Session, level: str, victim: RunSpec, outside: Path) -> dict[str, object]:
    """All that an attacker could want to know of the node."""
    tops = ["/"] if level != NONE else ["/tmp", "/dev/shm"]
    directory, root = session.directory(victim), session.home / ".tessera"
    pids = [one.pid for one in system.processes() if is_of(victim, one.pid)]
    return {
        "places": [*(str(path) for path in (directory, root, outside)), *tops],
        "is_isolated": level != NONE,
        "pids": pids,
        "log_directory": str(directory / "log"),
        "log": str(next((directory / "log").iterdir())),
        "reports": str(reports(directory)),
        "stored": str(next((directory / "reports").iterdir())),
        "socket": str(directory / protocol.REPORTS_SOCKET),
        "token": str(directory / protocol.REPORTS_TOKEN),
        "state": str(directory / "state"),
        "bundle": str(session.home / "node.pyz"),
        "declaration": str(root / "isolation.json"),
        "engine": str(outside / "engine"),
        "agent": str(outside / "agent"),
        "segment": SEGMENT,
        "forged": "\n",
    }


def reports(directory: Path) -> Path:
    path = directory / protocol.REPORTS_FILE
    if not path.exists():
        path.touch()
        path.chmod(0o666)
    return path


def is_of(spec: RunSpec, pid: int) -> bool:
    return f"TESSERA_JOB_RUN_ID={spec.run_id}".encode() in system.environment_of(pid)


@pytest.mark.parametrize("attack", EVERYTHING)
def test_an_attack_succeeds_only_without_isolation(
    place: tuple[str, str, Session], outcome: Outcome, attack: str
) -> None:
    level, account, _ = place
    needs_root = {"replace-log-by-device", "ptrace"}

    if level != NONE:
        assert attack not in outcome.done
    elif account == ROOT or attack not in needs_root:
        assert attack in outcome.done


def test_both_jobs_ran_at_once_and_the_victim_is_unharmed(
    place: tuple[str, str, Session], outcome: Outcome
) -> None:
    level, _, _ = place

    assert (outcome.victim.isolation, outcome.attacker.isolation) == (level, level)
    assert ("not-isolated" in outcome.victim.warnings) == (level == NONE)
    assert outcome.end.exit is not None
    if level != NONE:
        assert outcome.log == "log-of-bob\nup\nintact\n"
        assert outcome.reports == '{"step": 1}\n'
        assert outcome.end.exit.code == 7
    else:
        assert "hit" in outcome.log
