"""What the client sends, repeats and raises."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tessera.client import ApiError, Client, UnreachableError, seen_fingerprint
from tessera.client_errors import seen_key

Answer = Callable[[httpx.Request], httpx.Response]
JOB = {"id": 7, "name": "hello", "state": "queued", "user": {"username": "alice"}}


def client_of(answer: Answer, pauses: list[float] | None = None) -> Client:
    kept: list[float] = [] if pauses is None else pauses
    return Client("http://x", "tok", transport=httpx.MockTransport(answer), sleep=kept.append)


def failing(times: int, seen: list[httpx.Request], body: Any = JOB) -> Answer:
    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if len(seen) <= times:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(201, json=body)

    return answer


def test_a_submit_is_repeated_with_the_same_idempotency_key() -> None:
    seen: list[httpx.Request] = []
    pauses: list[float] = []

    with client_of(failing(2, seen), pauses) as client:
        job = client.submit({"name": "hello"})

    assert (job.id, job.state, job.user) == (7, "queued", "alice")
    keys = {request.headers["Idempotency-Key"] for request in seen}
    assert len(seen) == 3
    assert len(keys) == 1
    assert keys.pop()
    assert pauses == sorted(pauses)


def test_two_submits_have_different_keys() -> None:
    seen: list[httpx.Request] = []

    with client_of(failing(0, seen)) as client:
        client.submit({"name": "hello"})
        client.submit({"name": "hello"})

    assert len({request.headers["Idempotency-Key"] for request in seen}) == 2


def test_a_clone_is_repeated_with_the_same_key_and_another_has_its_own() -> None:
    seen: list[httpx.Request] = []

    with client_of(failing(1, seen)) as client:
        client.clone(7)
        client.clone(7)
        client.clone(7, idempotency_key="mine")

    cut, again, another, given = (request.headers["Idempotency-Key"] for request in seen)
    assert cut == again != another
    assert given == "mine"


def test_a_stop_is_sent_once() -> None:
    seen: list[httpx.Request] = []

    with client_of(failing(1, seen)) as client, pytest.raises(UnreachableError, match="http://x"):
        client.stop(7)

    assert len(seen) == 1


def test_a_read_gives_up_after_some_tries() -> None:
    seen: list[httpx.Request] = []

    with client_of(failing(99, seen)) as client, pytest.raises(UnreachableError):
        client.job(7)

    assert len(seen) == 4


def test_yaml_text_is_sent_as_it_is() -> None:
    seen: list[httpx.Request] = []

    with client_of(failing(0, seen)) as client:
        client.submit("name: 'häßlich'\n")

    assert seen[0].headers["Content-Type"] == "application/yaml"
    assert seen[0].content.decode() == "name: 'häßlich'\n"


def test_the_token_goes_into_the_header() -> None:
    seen: list[httpx.Request] = []

    with client_of(failing(0, seen)) as client:
        client.job(7)

    assert seen[0].headers["Authorization"] == "Token tok"
    assert seen[0].url == "http://x/api/v1/jobs/7/"


def test_a_list_is_read_to_its_end_page_by_page() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        page = request.url.params.get("cursor", "one")
        assert request.url.params["state"] == "running"
        results = {"one": [1, 2], "two": [3]}[page]
        more = {"one": "two", "two": None}[page]
        jobs = [JOB | {"id": number} for number in results]
        return httpx.Response(200, json={"results": jobs, "next_cursor": more})

    with client_of(answer) as client:
        numbers = [job.id for job in client.jobs(state="running", user=None)]

    assert numbers == [1, 2, 3]


def test_a_problem_names_field_value_and_remedy() -> None:
    error = {"field": "roles.worker.devices", "value": -1, "message": "no", "remedy": "Write 1."}
    problem = {"code": "invalid-spec", "title": "Not a job", "errors": [error]}

    with (
        client_of(lambda _: httpx.Response(422, json=problem)) as client,
        pytest.raises(ApiError) as caught,
    ):
        client.submit({})

    assert (caught.value.status, caught.value.code) == (422, "invalid-spec")
    assert caught.value.errors[0].value == -1
    assert caught.value.errors[0].remedy == "Write 1."


def test_an_answer_that_is_no_json_is_an_error_with_its_status() -> None:
    with (
        client_of(lambda _: httpx.Response(502, text="<html>")) as client,
        pytest.raises(ApiError) as caught,
    ):
        client.job(7)

    assert (caught.value.status, caught.value.code) == (502, "http-502")


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        ({"host_key_fingerprint": "SHA256:a"}, "SHA256:a"),
        ({"errors": [{"field": "host_key_fingerprint", "value": "SHA256:b"}]}, "SHA256:b"),
        ({"code": "conflict"}, ""),
    ],
)
def test_the_fingerprint_is_found_in_the_refusal(body: dict[str, Any], seen: str) -> None:
    assert seen_fingerprint(ApiError(status=409, body=body, reason="")) == seen


def test_a_followed_log_comes_whole_while_it_grows_and_ends_with_the_job() -> None:
    log = "één line\n" * 40
    encoded = log.encode()
    states = iter(["running", "running", "succeeded"])
    grown = iter([100, 300])
    size = {"now": 0}

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/logs/"):
            size["now"] = next(grown, len(encoded))
            return httpx.Response(200, json=JOB | {"state": next(states)})
        offset = int(request.url.params["offset"])
        text, taken = piece(encoded[: size["now"]], offset, 64)
        upto = offset + taken
        shown = {
            "text": text,
            "next_offset": upto,
            "size": size["now"],
            "end": upto == len(encoded),
        }
        return httpx.Response(200, json=shown)

    with client_of(answer) as client:
        assert "".join(client.follow_logs(7, role="worker", rank=0)) == log


def test_a_followed_log_goes_on_with_the_next_attempt() -> None:
    logs = {1: "first try\n", 2: "second try\n"}
    states = iter(["running", "queued", "running", "succeeded"])
    newest = {"attempt": 1}

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/logs/"):
            state = next(states)
            newest["attempt"] += state == "queued"
            return httpx.Response(200, json=JOB | {"state": state})
        attempt = int(request.url.params.get("attempt", newest["attempt"]))
        text = logs[attempt][int(request.url.params["offset"]) :]
        size = len(logs[attempt])
        shown = {"text": text, "next_offset": size, "size": size, "end": True, "attempt": attempt}
        return httpx.Response(200, json=shown)

    with client_of(answer) as client:
        assert "".join(client.follow_logs(7)) == "first try\nsecond try\n"


def test_a_log_that_is_not_followed_ends_where_it_is() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(200, json={"text": "a", "next_offset": 1, "size": 1, "end": True})

    with client_of(answer) as client:
        assert list(client.follow_logs(7, follow=False)) == ["a"]

    assert asked == ["/api/v1/jobs/7/logs/"]


def test_a_token_is_made_with_name_and_password() -> None:
    seen: list[httpx.Request] = []
    made = {"id": 1, "key": "k", "prefix": "p", "scopes": ["read"], "expires_at": None}

    with client_of(failing(0, seen, made)) as client:
        token = client.create_token(name="ci", scopes=["read"], user="alice", password="pw: 1")

    assert token.key == "k"
    assert json.loads(seen[0].content) == {"name": "ci", "scopes": ["read"]}
    assert seen[0].headers["Authorization"].startswith("Basic ")


def piece(encoded: bytes, offset: int, limit: int) -> tuple[str, int]:
    """Whole characters from ``offset``, as the API cuts them."""
    part = encoded[offset : offset + limit]
    while True:
        try:
            return part.decode(), len(part)
        except UnicodeDecodeError:
            part = part[:-1]


def test_the_key_of_a_jump_host_is_confirmed_first() -> None:
    jump = {"field": "jump_host_key_fingerprint", "value": "SHA256:jump"}
    node = {"field": "host_key_fingerprint", "value": "SHA256:node"}

    found = [
        seen_key(ApiError(status=409, body={"errors": errors}, reason=""))
        for errors in ([jump], [node], [])
    ]

    assert found == [
        ("jump_host_key_fingerprint", "SHA256:jump"),
        ("host_key_fingerprint", "SHA256:node"),
        ("host_key_fingerprint", ""),
    ]
