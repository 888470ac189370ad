"""Bodies that are too large: refused before they are kept, whatever the sender says of them."""

import json
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator

from portal import serving
from portal.serving import BoundedBodies

PIECE = b"x" * 1000


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_OTHER_BYTES", 2500)
    monkeypatch.setattr(serving, "MOST_UPLOAD_BYTES", 5500)


class Reader:
    """An application that keeps what it is given and says how much that was."""

    def __init__(self) -> None:
        self.seen = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            self.seen += len(message["body"])
            more = message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"read", "more_body": False})


async def post(
    path: str, pieces: int, *, length: int | None = None, accept: str = "*/*"
) -> tuple[int, bytes, int]:
    """Status, body, and how much the application was given."""
    reader = Reader()
    headers = [(b"accept", accept.encode())]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    scope = {"type": "http", "path": path, "method": "POST", "headers": headers}
    line: Any = ApplicationCommunicator(BoundedBodies(reader), scope)
    for number in range(pieces):
        more = number + 1 < pieces
        await line.send_input({"type": "http.request", "body": PIECE, "more_body": more})
    started = await line.receive_output(60)
    body = await line.receive_output(60)
    await line.wait(60)
    return started["status"], body["body"], reader.seen


async def test_what_is_small_enough_goes_through() -> None:
    assert await post("/api/v1/jobs/", 2, length=2000) == (200, b"read", 2000)
    assert await post("/submit/check/", 5) == (200, b"read", 5000)


async def test_a_length_that_is_too_large_is_refused_before_anything_is_kept() -> None:
    status, body, seen = await post("/submit/check/", 6, length=6000)

    refusal = json.loads(body)
    assert (status, seen, refusal["code"]) == (413, 0, "too-large")
    (fault,) = refusal["errors"]
    assert (fault["field"], fault["value"]) == ("source.archive", 6000)
    assert "5,500" in fault["message"]
    assert "fetch them in the job" in fault["remedy"]


@pytest.mark.parametrize("length", [None, 10])
async def test_who_tells_no_length_or_a_wrong_one_is_stopped_at_the_bound(
    length: int | None,
) -> None:
    status, body, seen = await post("/api/v1/jobs/", 4, length=length)

    assert (status, json.loads(body)["errors"][0]["field"], seen) == (413, "body", 2000)


async def test_a_browser_reads_a_page_with_field_and_remedy() -> None:
    status, body, _ = await post("/submit/", 6, length=6000, accept="text/html,*/*")

    page = body.decode()
    assert status == 413
    assert "source.archive" in page
    assert "6,000 bytes" in page
    assert "fetch them in the job" in page


async def test_a_sender_that_never_ends_is_not_read_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "MOST_DISCARDED_BYTES", 3000)
    scope = {"type": "http", "path": "/x", "headers": [(b"content-length", b"9999999")]}
    line: Any = ApplicationCommunicator(BoundedBodies(Reader()), scope)
    for _ in range(4):
        await line.send_input({"type": "http.request", "body": PIECE, "more_body": True})

    assert (await line.receive_output(60))["status"] == 413
    await line.receive_output(60)
    await line.wait(60)
