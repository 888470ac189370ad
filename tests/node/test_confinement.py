"""A node whose levels are not known runs no job without an image."""

import os
from pathlib import Path

import pytest
from session import Session, declare_isolation, make_spec

from tessera import isolation, protocol
from tessera.isolation import NONE
from tessera.node import confinement, operations, runs, serve
from tessera.protocol import ProtocolError

MALFORMED = ['{"strongest": "weak"}', '{"strongest": "user"', "[]", '{"unheard": 1}', ""]


def break_declaration(home: Path, content: str) -> Path:
    declare_isolation(home)
    path = home / protocol.ROOT_DIR / confinement.DECLARATION_FILE
    path.write_text(content)
    return path


@pytest.mark.parametrize("content", MALFORMED)
def test_a_malformed_declaration_runs_no_job_until_it_is_repaired(
    session: Session, home: Path, content: str
) -> None:
    path = break_declaration(home, content)
    spec = make_spec("true", isolation=NONE)

    with pytest.raises(ProtocolError) as refused:
        session.prepare(spec)
    found = session.ask(protocol.PROBE)["inventory"]["isolation"]
    path.unlink()
    session.start(spec)

    assert (refused.value.code, refused.value.failure) == ("isolation-not-available", "node")
    assert {one["cause"] for one in found} == {"declaration-malformed"}
    assert [one["level"] for one in found if one["available"]] == []
    assert session.exit_of(spec).exit.cause == "exited"


def test_a_declaration_that_breaks_after_the_levels_were_tried_counts_at_once(
    session: Session, home: Path
) -> None:
    status, _ = session.run("true")
    spec = make_spec("true", isolation=NONE)
    session.prepare(spec)
    break_declaration(home, MALFORMED[0])

    session.go(spec)
    ended = session.exit_of(spec)

    assert status.exit.cause == "exited"
    assert (ended.exit.cause, ended.exit.failure) == ("start-failed", "node")
    assert ended.exit.message.startswith("isolation-not-available: isolation.json")


def test_levels_whose_trial_ends_early_are_not_available() -> None:
    found = confinement._in_child(lambda: os._exit(1))

    assert {(one.available, one.cause) for one in found} == {(False, isolation.NOT_TRIED)}


def test_a_start_is_not_claimed_if_the_levels_cannot_be_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = runs.Store(str(tmp_path))
    store.create()
    server = serve.Server(store, "/nonexistent/node.pyz", *os.pipe())
    handler = operations.Operations(server)
    spec = make_spec("true", isolation=NONE)
    handler.handle(1, {"op": protocol.PREPARE, "run": spec.to_json()})

    def full() -> int:
        raise BlockingIOError(11, "no more processes")

    confinement._known.clear()  # a later session of the node tries the levels again
    monkeypatch.setattr(os, "fork", full)
    handler.handle(2, {"op": protocol.GO, "run_id": spec.run_id})

    run = store.run(spec.run_id)
    assert not run.claimed()
    assert run.status().phase == protocol.PREPARED
