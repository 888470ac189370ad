"""Sessions of two releases on one node: runs continue when the sessions change, either way.

The next release is the code of this one with a newer protocol version and one more field in the
status of a run.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from session import SOURCES, Session, make_spec, wait_until

from tessera import protocol
from tessera.bundle import build_bundle
from tessera.protocol import ProtocolError

NEWER = protocol.PROTOCOL_VERSION + 1
_BUILD = (
    "import sys; from tessera.bundle import build_bundle;"
    "sys.stdout.buffer.write(build_bundle().data)"
)
_SPEC = (
    "import json, sys; from tessera.run_spec import RunSpec;"
    "print(json.dumps(RunSpec(**json.loads(sys.argv[1])).to_json()))"
)


@dataclass(frozen=True)
class Releases:
    """Node programs of this release and the next one, and the source of the latter."""

    this: Path
    next: Path
    source: Path

    def next_spec(self, **fields: Any) -> dict[str, Any]:
        """Return a spec as the control plane of the next release sends it."""
        return dict(json.loads(self._python(_SPEC, json.dumps(fields))))

    def _python(self, *arguments: str) -> bytes:
        return _python(self.source, *arguments)


def _python(source: Path, *arguments: str) -> bytes:
    return subprocess.run(
        [sys.executable, "-c", *arguments],
        capture_output=True, check=True, env={"PYTHONPATH": str(source)}, timeout=60,
    ).stdout  # fmt: skip


def _replace(path: Path, old: str, new: str) -> None:
    text, count = re.subn(old, new, path.read_text(), flags=re.MULTILINE)
    assert count == 1, f"{path.name} has changed: {old}"
    path.write_text(text)


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    folder = tmp_path_factory.mktemp("releases")
    source = folder / "src"
    shutil.copytree(SOURCES / "tessera", source / "tessera")
    _replace(
        source / "tessera/run_spec.py", r"^PROTOCOL_VERSION = \d+$", f"PROTOCOL_VERSION = {NEWER}"
    )
    _replace(
        source / "tessera/protocol.py",
        r"^    network: str = SHARED_NETWORK\n",
        '    network: str = SHARED_NETWORK\n    weather: str = "sunny"\n',
    )
    this = _installed(folder / ("a" * 64), build_bundle().data)
    following = _installed(folder / ("b" * 64), _python(source, _BUILD))
    return Releases(this, following, source)


def _installed(folder: Path, data: bytes) -> Path:
    folder.mkdir()
    bundle = folder / "node.pyz"
    bundle.write_bytes(data)
    return bundle


@contextmanager
def session_of(home: Path, bundle: Path) -> Iterator[Session]:
    session = Session(home, bundle=bundle)
    try:
        yield session
    finally:
        session.kill()


@pytest.mark.parametrize("order", [(0, 1, 0), (1, 0, 1)], ids=["to the next", "from the next"])
def test_runs_continue_when_sessions_change_between_releases(
    home: Path, releases: Releases, order: tuple[int, ...]
) -> None:
    first, second, third = ((releases.this, releases.next)[number] for number in order)
    script = "echo one; {0} a; echo two; {0} b; echo three; exit 4"
    wait = 'wait_for() { until [ -e "$1" ]; do sleep 0.02; done; }; '
    running = make_spec(wait + script.format("wait_for"), lease_seconds=600.0)
    prepared, stopped = make_spec("echo later"), make_spec("sleep 1000")
    with session_of(home, first) as session:
        before = session.start(running)
        session.start(stopped)
        session.prepare(prepared)

    with session_of(home, second) as session:
        found = session.status(running)
        assert (found.phase, found.pid, found.runner_pid) == (
            protocol.RUNNING, before.pid, before.runner_pid
        )  # fmt: skip
        session.go(prepared)
        ended = session.exit_of(prepared)
        session.ask(protocol.STOP, run_id=stopped.run_id, grace_seconds=1, reason="user")
        end = session.exit_of(stopped)
        (session.directory(running) / "work" / "a").touch()
        wait_until(lambda: session.log(running) == "one\ntwo\n", "the second line")

    with session_of(home, third) as session:
        renewed = session.ask(protocol.RENEW, run_ids=[running.run_id], seconds=500)["deadlines"]
        (session.directory(running) / "work" / "b").touch()
        status = session.exit_of(running)
        log, later = session.log(running), session.log(prepared)
        for spec in (running, prepared, stopped):
            assert session.ask(protocol.REMOVE, run_id=spec.run_id)["removed"] is True
        assert session.runs() == []

    assert (ended.exit and ended.exit.code, later) == (0, "later\n")
    assert end.exit is not None
    assert end.exit.cause == protocol.CAUSE_STOPPED
    assert set(renewed) == {running.run_id}
    assert (status.exit and status.exit.code, log) == (4, "one\ntwo\nthree\n")


def test_programs_of_this_release_start_specs_of_the_next(home: Path, releases: Releases) -> None:
    plain = make_spec("echo from the next release; exit 3")
    names = ("run_id", "job_id", "job_name", "attempt", "role", "rank", "command")
    sent = releases.next_spec(**{name: getattr(plain, name) for name in names})

    with session_of(home, releases.this) as session:
        session.ask(protocol.PREPARE, run=sent, secrets={})
        session.go(plain)
        status = session.exit_of(plain)
        with pytest.raises(ProtocolError) as refused:
            session.ask(
                protocol.PREPARE, run={**make_spec().to_json(), "protocol": NEWER}, secrets={}
            )

    assert (status.exit and status.exit.code) == 3
    assert refused.value.code == "bad-field"
