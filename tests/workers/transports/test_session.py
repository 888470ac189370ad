"""The session against a node that sends arbitrary messages."""

import asyncio
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera import protocol
from tessera.protocol import RunStatus
from workers.transports import replies
from workers.transports.base import (
    Grew,
    MisbehavedError,
    RefusedError,
    UnreachableNodeError,
)
from workers.transports.session import MOST_RUNS_WITH_NEWS, ServeSession

RUN = "0123456789abcdef.worker.0"


class Line:
    """Collects what the session sends."""

    def __init__(self) -> None:
        self.sent: list[dict[str, object]] = []
        self.session = ServeSession(self._send, request_seconds=60.0)

    def _send(self, data: bytes) -> None:
        self.sent.append(json.loads(data))

    def receive(self, **message: object) -> None:
        self.session.feed(json.dumps(message).encode() + b"\n")


@pytest.fixture
def line() -> Line:
    return Line()


async def test_any_message_of_the_node_counts_as_contact(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heard_after(seconds: float, data: bytes) -> float:
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: seconds)
            line.session.feed(data)
        return line.session.heard_at

    event = json.dumps({"event": "grew", "run_id": RUN, "log_end": 1, "reports_end": 0}).encode()
    assert heard_after(1e9, event + b"\n") == 1e9
    assert heard_after(2e9, b'{"id": 7, "ok": true}\n') == 2e9
    assert heard_after(3e9, b'{"id"') == 3e9


async def test_replies_find_their_requests_in_any_order(line: Line) -> None:
    first = asyncio.create_task(line.session.request("probe"))
    second = asyncio.create_task(line.session.request("runs"))
    await asyncio.sleep(0)

    line.receive(id=2, ok=True, runs=[])
    line.receive(id=1, ok=True, inventory={})

    assert (await second)["runs"] == []
    assert (await first)["inventory"] == {}


async def test_the_node_s_time_is_taken_from_replies_and_from_events_once_it_was_set(
    line: Line,
) -> None:
    assert line.session.clock is None

    asked = asyncio.create_task(line.session.request("renew"))
    await asyncio.sleep(0)
    line.receive(id=1, ok=True, deadlines={}, now=time.monotonic() + 5000)
    await asked
    by_reply = line.session.clock
    status = RunStatus(run_id=RUN, phase=protocol.RUNNING).to_json()
    line.receive(event="run", run=status, now=time.monotonic() + 5000)
    unchanged = line.session.clock
    line.receive(event="run", run=status, now=time.monotonic() + 12200)
    by_event = line.session.clock

    assert by_reply is not None
    assert by_event is not None
    assert by_reply.ahead == pytest.approx(5000, abs=by_reply.error + 0.001)
    assert unchanged is by_reply
    assert by_event.ahead == pytest.approx(12200, abs=by_event.error + 0.001)


async def test_an_event_that_was_delayed_does_not_move_the_node_s_clock(line: Line) -> None:
    asked = asyncio.create_task(line.session.request("renew"))
    await asyncio.sleep(0)
    line.receive(id=1, ok=True, deadlines={}, now=time.monotonic() + 5000)
    await asked
    by_reply = line.session.clock
    status = RunStatus(run_id=RUN, phase=protocol.RUNNING).to_json()

    line.receive(event="run", run=status, now=time.monotonic() + 4996)

    assert line.session.clock is by_reply


async def test_a_reply_may_arrive_in_single_bytes(line: Line) -> None:
    asked = asyncio.create_task(line.session.request("runs"))
    await asyncio.sleep(0)

    for byte in b'{"id": 1, "ok": true, "runs": []}\n':
        line.session.feed(bytes([byte]))

    assert (await asked)["ok"] is True


async def test_a_refusal_carries_class_code_and_message(line: Line) -> None:
    asked = asyncio.create_task(line.session.request("go", run_id=RUN))
    await asyncio.sleep(0)

    line.receive(id=1, ok=False, error={"class": "image", "code": "c", "message": "m"})

    with pytest.raises(RefusedError) as refused:
        await asked
    assert (refused.value.failure_class, refused.value.code, refused.value.message) == (
        "image",
        "c",
        "m",
    )


async def test_a_reply_timeout_names_the_request(line: Line) -> None:
    with pytest.raises(UnreachableNodeError, match=r"no reply to probe within 0\.01 s"):
        await line.session.request("probe", patience=0.01)


async def test_a_reply_that_comes_too_late_is_ignored(line: Line) -> None:
    with pytest.raises(UnreachableNodeError):
        await line.session.request("probe", patience=0.01)

    line.receive(id=1, ok=True)

    assert line.session.ended is None


async def test_all_open_requests_fail_when_the_connection_breaks(line: Line) -> None:
    asked = [asyncio.create_task(line.session.request("runs")) for _ in range(3)]
    await asyncio.sleep(0)

    line.session.end(UnreachableNodeError("cable cut"))

    for task in asked:
        with pytest.raises(UnreachableNodeError, match="cable cut"):
            await task
    with pytest.raises(UnreachableNodeError, match="cable cut"):
        await line.session.request("runs")


async def test_requests_wait_while_the_line_is_full(line: Line) -> None:
    line.session.hold()
    asked = asyncio.create_task(line.session.request("runs"))
    await asyncio.sleep(0)
    sent_while_full = list(line.sent)

    line.session.go_on()
    await asyncio.sleep(0)
    line.receive(id=1, ok=True, runs=[])

    await asked
    assert sent_while_full == []


async def test_a_request_that_is_too_large_never_leaves(line: Line) -> None:
    with pytest.raises(RefusedError) as refused:
        await line.session.request("prepare", text="x" * protocol.MAX_LINE_BYTES)

    assert refused.value.code == "request-too-large"
    assert line.sent == []


async def test_the_newest_event_of_a_run_replaces_older_ones(line: Line) -> None:
    for end in range(10_000):
        line.receive(event="grew", run_id=RUN, log_end=end, reports_end=0)
    line.receive(event="run", run={"run_id": RUN, "phase": "running"})
    line.session.end(UnreachableNodeError("over"))

    news = line.session.events()

    assert [await anext(news), await anext(news)] == [
        Grew(run_id=RUN, log_end=9_999, reports_end=0),
        RunStatus.from_json({"run_id": RUN, "phase": "running"}),
    ]


async def test_events_of_too_many_runs_end_the_session(line: Line) -> None:
    for number in range(MOST_RUNS_WITH_NEWS + 1):
        assert line.session.ended is None
        line.receive(event="grew", run_id=f"0123456789abcdef.worker.{number}", log_end=1)

    assert isinstance(line.session.ended, MisbehavedError)


@pytest.mark.parametrize(
    "raw",
    [
        b"hello\n",
        b"[1, 2]\n",
        b'{"id": 1, "ok": tru\n',
        b"x" * (protocol.MAX_LINE_BYTES + 1),
        b"[" * 100_000 + b"\n",
        b'{"id": ' + b"9" * 100_000 + b"}\n",
        b'{"event": "run", "run": {"run_id": "../../etc/passwd", "phase": "running"}}\n',
        b'{"event": "run", "run": {"run_id": "0123456789abcdef.w.0", "phase": "flying"}}\n',
        b'{"event": "run", "run": 7}\n',
        b'{"event": "grew", "run_id": "0123456789abcdef.w.0", "log_end": -1}\n',
        b'{"event": "grew", "run_id": "0123456789abcdef.w.0", "log_end": "9"}\n',
        b'{"event": "grew"}\n',
        b"\xff\xfe\n",
    ],
)
async def test_a_violation_of_the_protocol_ends_the_session(line: Line, raw: bytes) -> None:
    asked = asyncio.create_task(line.session.request("runs"))
    await asyncio.sleep(0)

    line.session.feed(raw)

    with pytest.raises(MisbehavedError):
        await asked


@pytest.mark.parametrize(
    "raw",
    [
        b'{"id": true, "ok": true}\n',
        b'{"id": "1", "ok": true}\n',
        b'{"id": [1], "ok": true}\n',
        b'{"id": 99, "ok": true}\n',
        b'{"event": "of-a-later-version", "x": 1}\n',
        b'{"event": ["run"]}\n',
    ],
)
async def test_replies_to_no_request_are_ignored(line: Line, raw: bytes) -> None:
    asked = asyncio.create_task(line.session.request("runs"))
    await asyncio.sleep(0)

    line.session.feed(raw)
    line.receive(id=1, ok=True, runs=[])

    assert (await asked)["runs"] == []


@given(
    raw=st.binary(max_size=300)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["id", "ok", "event", "run", "error", "run_id", "now"]), inner
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_no_bytes_raise_out_of_the_session(raw: bytes) -> None:
    session = ServeSession(lambda data: None)

    session.feed(raw + b"\n")

    assert session.ended is None or isinstance(session.ended, MisbehavedError)


@pytest.mark.parametrize(
    "reply",
    [
        {"data": "!!!", "offset": 0, "end": 3},
        {"data": "YWJj", "offset": 0, "end": 2},
        {"data": "YWJj", "offset": -3, "end": 3},
        {"data": "YWJj", "offset": 1, "end": 9, "closed": "yes"},
        {"data": "YWJjZGVm", "offset": 4, "end": 99},
        {"data": "YWJj", "offset": 3, "end": 99},
        {"data": "YWJj", "offset": 10**16, "end": 10**16 + 3},
        {"data": 7, "offset": 4, "end": 99},
    ],
)
def test_a_piece_that_does_not_fit_the_request_is_refused(reply: dict[str, object]) -> None:
    with pytest.raises(MisbehavedError):
        replies.checked(lambda found: replies.read_chunk(found, offset=4, limit=5), reply)


@pytest.mark.parametrize(
    ("read", "reply"),
    [
        (replies.read_hello, {"hello": {"protocol": 1}}),
        (replies.read_inventory, {"inventory": {"devices": [{}]}}),
        (replies.read_run, {"run": {"run_id": RUN, "phase": "running", "pid": -4}}),
        (replies.read_run, {"run": None}),
        (replies.read_renewed, {"deadlines": [RUN]}),
        (replies.read_runs, {"runs": {"a": 1}}),
        (replies.read_runs, {"runs": [{"run_id": "x", "phase": "running"}]}),
        (replies.read_telemetry, {"telemetry": {"devices": [{"index": 0, "utilisation": 1e9}]}}),
        (replies.read_telemetry, {"telemetry": {"load": float("nan")}}),
    ],
)
def test_a_wrong_reply_is_refused_by_its_reader(read: object, reply: dict[str, object]) -> None:
    with pytest.raises(MisbehavedError):
        replies.checked(read, reply)  # type: ignore[arg-type]
