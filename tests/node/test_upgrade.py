"""Runs of the version before: read, adopted while they run, started, ended and removed.

``fixtures/version1`` holds what version 1 of the node's code has left on a node (``runs.tar.gz``:
a prepared, a running and an ended run), and that code itself (``node.pyz``, without
``tessera.train``), so that a runner of it can really be upgraded under.
"""

import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from session import Session, make_spec, wait_until

from tessera import protocol
from tessera.node import runs, system, version1
from tessera.protocol import ProtocolError, RunSpec, RunStatus

OLD = Path(__file__).parents[1] / "fixtures" / "version1"
PREPARED, ENDED, RUNNING = (f"{pair * 16}.worker.0" for pair in ("a1", "b2", "c3"))


@pytest.fixture
def left(home: Path) -> Path:
    """A home with the recorded runs, as if this machine had made them in this boot."""
    root = home / protocol.ROOT_DIR / protocol.RUNS_DIR
    root.mkdir(parents=True)
    with tarfile.open(OLD / "runs.tar.gz") as archive:
        archive.extractall(root, filter="data")
    for run_id in (PREPARED, ENDED, RUNNING):
        path = root / run_id / version1.STATE_FILE
        state = json.loads(path.read_text())
        state |= {"hostname": system.hostname(), "boot_id": system.boot_id()}
        path.write_text(json.dumps(state))
    return root


@pytest.fixture
def old(home: Path) -> Iterator[Session]:
    """A session that version 1 serves."""
    found = Session(home, bundle=OLD / "node.pyz")
    yield found
    if found.process.poll() is None:
        found.close()


def by_id(session: Session) -> dict[str, RunStatus]:
    return {status.run_id: status for status in session.runs()}


def old_spec(command: str, **changes: object) -> RunSpec:
    return make_spec(command, protocol=1, **changes)


def test_recorded_runs_are_read_with_their_state_log_and_end(left: Path, home: Path) -> None:
    session = Session(home)

    found = by_id(session)

    assert {found[run_id].protocol for run_id in found} == {1}
    assert found[PREPARED].phase == protocol.PREPARED
    ended, lost = found[ENDED].exit, found[RUNNING].exit
    assert ended is not None
    assert (ended.code, found[ENDED].log_end) == (3, 8)
    # Its runner is gone since long, which the free lock proves.
    assert lost is not None
    assert lost.cause == protocol.CAUSE_LOST
    assert json.loads((left / RUNNING / version1.STATE_FILE).read_text())["phase"] == "exited"
    session.close()


def test_a_recorded_prepared_run_is_started_and_removed(left: Path, home: Path) -> None:
    session = Session(home)
    spec = RunSpec.from_json(json.loads((left / PREPARED / version1.SPEC_FILE).read_text()))

    session.go(spec)
    status = session.exit_of(spec)

    assert spec.protocol == 1
    assert (status.exit and status.exit.code, status.protocol) == (0, 1)
    assert session.log(spec) == "started\nnot-a-secret"
    assert not (left / PREPARED / protocol.STATE_FILE).exists()
    for run_id in (PREPARED, ENDED):
        assert session.ask("remove", run_id=run_id)["removed"] is True
        assert not (left / run_id).exists()
    session.close()


def test_a_recorded_prepared_run_that_is_prepared_again_stays_as_it_is(
    left: Path, home: Path
) -> None:
    session = Session(home)
    stored = json.loads((left / PREPARED / version1.SPEC_FILE).read_text())
    spec = RunSpec.from_json({**stored, "protocol": protocol.PROTOCOL_VERSION})

    status = session.prepare(spec, token="not-a-secret")
    with pytest.raises(ProtocolError) as refused:
        session.prepare(RunSpec.from_json({**stored, "command": "false"}))
    cancelled = session.ask("cancel", run_id=PREPARED)

    assert (status.phase, status.protocol) == (protocol.PREPARED, 1)
    assert refused.value.code == "spec-differs"
    assert cancelled["cancelled"] is True
    session.close()


def test_a_job_runs_on_under_an_upgrade_and_ends_as_it_would_have(
    old: Session, home: Path
) -> None:
    spec = old_spec("echo one; while [ ! -e ../../../end ]; do sleep 0.02; done; echo two; exit 4")
    started = old.start(spec)
    wait_until(lambda: old.log(spec) == "one\n", "the first line")
    old.kill()

    session = Session(home)
    found = session.status(spec)
    renewed = session.ask("renew", run_ids=[spec.run_id], seconds=500)["deadlines"]
    lease = runs.Store(str(home / protocol.ROOT_DIR)).run(spec.run_id).lease_deadline()
    again = session.ask("go", run_id=spec.run_id)["already"]
    (home / protocol.ROOT_DIR / "end").touch()
    status = session.exit_of(spec)

    assert (found.phase, found.protocol) == (protocol.RUNNING, 1)
    assert (found.runner_pid, found.pid) == (started.runner_pid, started.pid)
    assert again is True
    assert lease == pytest.approx(renewed[spec.run_id], abs=0.01)
    assert status.exit is not None
    assert (status.exit.code, session.log(spec)) == (4, "one\ntwo\n")
    assert session.ask("remove", run_id=spec.run_id)["removed"] is True
    assert session.runs() == []
    session.close()


def test_an_old_runner_takes_the_orders_of_new_code(old: Session, home: Path) -> None:
    stopped, leased = old_spec("sleep 1000"), old_spec("sleep 1000", lease_seconds=3600.0)
    for spec in (stopped, leased):
        old.start(spec)
    old.ask("renew", run_ids=[leased.run_id], seconds=3600)
    old.kill()

    session = Session(home)
    session.ask("stop", run_id=stopped.run_id, grace_seconds=1, reason="user")
    end = session.exit_of(stopped)
    os.kill(session.status(leased).runner_pid or 0, 9)
    lost = session.exit_of(leased)

    assert (end.exit and end.exit.cause, end.notice) == (protocol.CAUSE_STOPPED, "user")
    assert lost.exit is not None
    assert lost.exit.cause == protocol.CAUSE_LOST
    assert system.process(lost.pid or 0) is None
    session.close()


def test_this_version_and_those_before_are_understood(session: Session) -> None:
    oldest, newest = protocol.OLDEST_VERSION, protocol.PROTOCOL_VERSION
    known = list(range(oldest, newest + 1))

    spoken = [session.ask("hello", protocol=version)["hello"]["protocol"] for version in known]
    refusals = []
    for version in (oldest - 1, newest + 1):
        with pytest.raises(ProtocolError) as refused:
            session.ask("hello", protocol=version)
        refusals.append(refused.value.code)

    assert known == [1, 2, 3]
    assert spoken == known
    assert refusals == ["protocol-mismatch"] * 2
