"""A session survives whatever comes in, and answers every request once."""

import base64
import json
import os
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from session import SOURCES, Session, make_spec, wait_until

from tessera import protocol
from tessera.node import system
from tessera.protocol import GitSource, NodeHello, ProtocolError


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"hello\n", "not-json"),
        (b"[1]\n", "not-an-object"),
        (b"\xff\xfe\x00\n", "not-json"),
        (b"{}\n", "bad-field"),
        (b'{"id": true, "op": "hello"}\n', "bad-field"),
        (b'{"id": "1", "op": "hello"}\n', "bad-field"),
        (b"[" * 50_000 + b"\n", "not-json"),
        (b"x" * (3 << 20) + b"\n", "line-too-long"),
        (b'{"id": 1, "op": "runs", "x": "' + b"y" * (1 << 20) + b'"}\n', "line-too-long"),
    ],
)
def test_a_bad_line_gets_an_error_and_the_session_goes_on(
    shared: Session, line: bytes, code: str
) -> None:
    shared.write(b"\n  \n" + line)

    with pytest.raises(ProtocolError) as refused:
        shared.reply(None)

    assert refused.value.code == code
    assert shared.ask("hello", protocol=1)["ok"] is True


@pytest.mark.parametrize(
    ("op", "fields", "code"),
    [
        ("format-disk", {}, "unknown-op"),
        (None, {}, "unknown-op"),
        (["hello"], {}, "unknown-op"),
        ("hello", {}, "bad-field"),
        ("hello", {"protocol": 99}, "protocol-mismatch"),
        ("go", {"run_id": "../../etc"}, "bad-run-id"),
        ("go", {"run_id": make_spec().run_id}, "unknown-run"),
        ("go", {}, "bad-field"),
        ("stop", {"run_id": make_spec().run_id, "grace_seconds": 1}, "unknown-run"),
        ("stop", {"run_id": make_spec().run_id, "grace_seconds": -1}, "bad-field"),
        ("read", {"run_id": make_spec().run_id, "offset": -1}, "bad-field"),
        ("read", {"run_id": make_spec().run_id, "stream": "secrets"}, "bad-field"),
        ("read", {"run_id": "x/../y"}, "bad-run-id"),
        ("renew", {"run_ids": ["../x"], "seconds": 1}, "bad-run-id"),
        ("renew", {"run_ids": [], "seconds": 0}, "bad-field"),
        ("prepare", {"run": {}}, "bad-field"),
        ("prepare", {"run": make_spec().to_json(), "secrets": {"../x": "y"}}, "bad-field"),
        ("prepare", {"run": make_spec().to_json(), "secrets": ["x"]}, "bad-field"),
        ("blob", {"sha256": "../../x"}, "bad-sha256"),
        ("blob", {"sha256": "a" * 64, "data": "***", "offset": 0}, "bad-field"),
        ("blob", {"sha256": "a" * 64, "last": True}, "no-blob"),
        ("remove", {"run_id": ""}, "bad-run-id"),
    ],
)
def test_a_bad_request_is_refused_with_its_code(
    shared: Session, op: object, fields: dict[str, object], code: str
) -> None:
    with pytest.raises(ProtocolError) as refused:
        shared.ask(op, **fields)  # type: ignore[arg-type]

    assert refused.value.code == code
    assert shared.runs() == []


def test_hello_reports_who_is_there(shared: Session) -> None:
    hello = NodeHello.from_json(shared.ask("hello", protocol=1)["hello"])

    assert hello.pid == shared.process.pid
    assert hello.home == str(shared.home)
    assert hello.root == str(shared.home / ".tessera")
    assert hello.bundle == str(SOURCES)
    assert (hello.uid, hello.gid) == (os.getuid(), os.getgid())


def test_replies_carry_the_clocks_of_the_node(shared: Session) -> None:
    before = (time.time(), system.boot_clock())
    replies = [
        shared.ask("hello", protocol=protocol.PROTOCOL_VERSION),
        shared.ask("runs"),
        shared.ask("renew", seconds=10.0, run_ids=[]),
    ]
    after = (time.time(), system.boot_clock())

    for reply in replies:
        assert before[0] <= reply["now"] <= after[0]
        assert before[1] <= reply["clock"] <= after[1]


def test_requests_in_one_write_and_in_pieces_are_all_answered(session: Session) -> None:
    lines = b"".join(
        protocol.encode_line({"id": number, "op": "hello", "protocol": 1})
        for number in range(100, 150)
    )

    for start in range(0, len(lines), 700):
        session.write(lines[start : start + 700])

    assert all(session.reply(number)["ok"] for number in range(100, 150))


def test_a_slow_prepare_delays_nobody(session: Session) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts and never says a word
        mute = GitSource(url=f"https://127.0.0.1:{silent.getsockname()[1]}/r.git")
        number = session.send("prepare", run=make_spec(source_git=mute).to_json())

        session.ask("hello", protocol=1)
        spec = make_spec()
        session.start(spec)
        session.exit_of(spec)

        status = next(run for run in session.runs() if run.phase == protocol.PREPARING)
        assert session.ask("cancel", run_id=status.run_id)["cancelled"] is True
        with pytest.raises(ProtocolError):
            session.reply(number)


def test_a_reader_that_pauses_gets_everything_later(session: Session) -> None:
    spec = make_spec("head -c 4000000 /dev/zero")
    session.start(spec)
    session.exit_of(spec)
    os.kill(session.process.pid, 0)
    numbers = [
        session.send("read", run_id=spec.run_id, offset=offset, limit=500_000)
        for offset in range(0, 4_000_000, 500_000)
        for _ in range(5)
    ]

    sizes = [len(base64.b64decode(session.reply(number)["data"])) for number in numbers]

    assert sizes == [500_000] * len(numbers)


def test_what_nobody_reads_takes_little_memory_and_comes_whole_in_the_end(
    session: Session, home: Path
) -> None:
    spec = make_spec("head -c 500000 /dev/zero")
    session.start(spec)
    session.exit_of(spec)
    question = {"op": "read", "run_id": spec.run_id, "offset": 0, "limit": 500_000}
    asked = [protocol.encode_line({"id": number, **question}) for number in range(50)]
    code = f"import sys; sys.path.insert(0, {str(SOURCES)!r});"
    code += "from tessera.node.__main__ import main; main(['serve'])"

    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "HOME": str(home)},
    ) as server:
        assert server.stdin
        assert server.stdout
        server.stdin.write(b"".join(asked))
        server.stdin.flush()
        answers = [json.loads(server.stdout.readline()) for _ in asked]
        status = Path(f"/proc/{server.pid}/status").read_text()
        server.stdin.close()

    peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    assert [answer["id"] for answer in answers] == list(range(50))
    assert {len(base64.b64decode(answer["data"])) for answer in answers} == {500_000}
    assert int(peak) < 60_000


def test_no_line_is_longer_than_agreed(shared: Session) -> None:
    spec = make_spec("head -c 3000000 /dev/zero")
    shared.start(spec)
    shared.exit_of(spec)

    reply = shared.ask("read", run_id=spec.run_id, offset=0, limit=1 << 30)

    assert len(json.dumps(reply)) <= protocol.MAX_LINE_BYTES
    assert reply["end"] == 3_000_000
    assert reply["closed"] is True


def test_many_runs_come_in_pages(shared: Session) -> None:
    specs = [make_spec() for _ in range(7)]
    for spec in specs:
        shared.prepare(spec)

    first = shared.ask("runs", limit=5)
    rest = shared.ask("runs", after=first["next"], limit=500)

    found = [run["run_id"] for run in first["runs"] + rest["runs"]]
    assert len(first["runs"]) == 5
    assert rest["next"] is None
    assert set(found) >= {spec.run_id for spec in specs}
    assert found == sorted(found)


def test_a_port_in_use_is_found_when_preparing(shared: Session) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ProtocolError) as refused:
            shared.prepare(make_spec(ports=[port], bind_host="127.0.0.1"))
        with pytest.raises(ProtocolError):
            shared.prepare(make_spec(ports=[port]))

    assert (refused.value.code, refused.value.failure) == ("port-in-use", "node")
    spec = make_spec(ports=[port], bind_host="127.0.0.1")
    assert shared.prepare(spec).phase == protocol.PREPARED


def test_an_error_never_repeats_a_secret(session: Session) -> None:
    spec = make_spec()
    session.prepare(spec, token="hunter2")
    number = session.send(
        "prepare", run={**spec.to_json(), "command": "x"}, secrets={"a/b": "hunter2"}
    )
    with pytest.raises(ProtocolError) as refused:
        session.reply(number)

    assert "hunter2" not in refused.value.message
    assert "hunter2" not in json.dumps(session.events)


def test_a_stop_before_the_start_is_refused_and_after_the_end_accepted(shared: Session) -> None:
    spec = make_spec()
    shared.prepare(spec)
    with pytest.raises(ProtocolError) as refused:
        shared.ask("stop", run_id=spec.run_id, grace_seconds=1, reason="user")

    shared.go(spec)
    shared.exit_of(spec)
    reply = shared.ask("stop", run_id=spec.run_id, grace_seconds=1, reason="user")

    assert refused.value.code == "not-started"
    assert reply["run"]["exit"]["cause"] == "exited"


def test_an_unknown_command_of_the_zipapp_is_refused() -> None:
    code = f"import sys; sys.path.insert(0, {str(SOURCES)!r}); sys.argv = ['x', 'dance'];"
    code += "from tessera.node.__main__ import main; sys.exit(main(sys.argv[1:]))"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "usage" in done.stderr


def test_replies_and_events_together_tell_each_change_once(session: Session, home: Path) -> None:
    spec = make_spec("while [ ! -e end ]; do sleep 0.02; done")
    other = Session(home)
    other.ask("hello", protocol=1)
    replied = [session.prepare(spec).phase, session.go(spec).phase]
    wait_until(lambda: other.events, "the other session to hear of the start")
    (session.directory(spec) / protocol.WORK_DIR / "end").touch()
    session.exit_of(spec)
    other.exit_of(spec)
    for each in (session, other):
        wait_until(partial(each.ask, "hello", protocol=1), "a last round trip")

    phases, others = (
        [event["run"]["phase"] for event in each.events if event["event"] == "run"]
        for each in (session, other)
    )

    other.close()
    assert [*replied, *phases] == ["prepared", "running", "exited"]
    assert others == ["running", "exited"]
