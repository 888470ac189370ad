"""Bodies that are too large are refused before they are stored, with any declared length."""

import json
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator

from portal.serving import BodyLimits, BoundedBodies

PIECE = b"x" * 1000


SMALL = BodyLimits(other=2500, upload=5500, discarded=3000)


class Reader:
    """An application that counts the bytes that it reads."""

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
    """Status, body, and the number of bytes that the application read."""
    reader = Reader()
    headers = [(b"accept", accept.encode())]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    scope = {"type": "http", "path": path, "method": "POST", "headers": headers}
    line: Any = ApplicationCommunicator(BoundedBodies(reader, SMALL), scope)
    for number in range(pieces):
        more = number + 1 < pieces
        await line.send_input({"type": "http.request", "body": PIECE, "more_body": more})
    started = await line.receive_output(60)
    body = await line.receive_output(60)
    await line.wait(60)
    return started["status"], body["body"], reader.seen


async def test_a_small_body_is_passed_on() -> None:
    assert await post("/api/v1/jobs/", 2, length=2000) == (200, b"read", 2000)
    assert await post("/submit/check/", 5) == (200, b"read", 5000)


async def test_a_length_that_is_too_large_is_refused_before_anything_is_stored() -> None:
    status, body, seen = await post("/submit/check/", 6, length=6000)

    refusal = json.loads(body)
    assert (status, seen, refusal["code"]) == (413, 0, "too-large")
    (fault,) = refusal["errors"]
    assert (fault["field"], fault["value"]) == ("source.archive", 6000)
    assert "5,500" in fault["message"]
    assert "fetch them in the job" in fault["remedy"]


@pytest.mark.parametrize("length", [None, 10])
async def test_a_body_without_a_correct_length_is_refused_at_the_limit(
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


async def test_a_body_without_end_is_read_up_to_a_limit() -> None:
    scope = {"type": "http", "path": "/x", "headers": [(b"content-length", b"9999999")]}
    line: Any = ApplicationCommunicator(BoundedBodies(Reader(), SMALL), scope)
    for _ in range(4):
        await line.send_input({"type": "http.request", "body": PIECE, "more_body": True})

    assert (await line.receive_output(60))["status"] == 413
    await line.receive_output(60)
    await line.wait(60)
