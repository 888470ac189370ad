"""Large bodies: the size is checked before parsing, and one is read per person at a time."""

import json
from typing import Any

import pytest

from portal.api.documents import LARGE_YAML_BYTES, one_large_parse
from scheduling.compat.documents import MAX_JSON_VALUES, MAX_YAML_VALUES, parse_document
from scheduling.compat.result import ImportRefusedError
from tenants.audit import Actor, audit_context
from tenants.models import User

YAML = "application/yaml"


def keys(size: int) -> str:
    """YAML of at least ``size`` bytes that is slow to parse."""
    return "".join(f"k{number}: v\n" for number in range(size // 6))


@pytest.mark.parametrize(
    ("path", "size", "most"),
    [
        ("jobs/", 300 << 10, 256 << 10),
        ("jobs/plan/", 300 << 10, 256 << 10),
        ("sweeps/", 300 << 10, 256 << 10),
        ("jobs/bulk/", 1100 << 10, 1 << 20),
        ("tenants/", 1100 << 10, 1 << 20),
    ],
)
def test_yaml_that_is_too_large_is_refused_unparsed(
    api: Any, monkeypatch: pytest.MonkeyPatch, path: str, size: int, most: int
) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("the body was parsed")

    monkeypatch.setattr("yaml.CSafeLoader.get_event", fail, raising=False)

    refused = api("alice").post(f"/api/v1/{path}", keys(size), content_type=YAML)

    assert (refused.status_code, refused.json()["code"]) == (413, "too-large")
    (fault,) = refused.json()["errors"]
    assert f"{most:,}" in fault["message"]
    assert "JSON" in fault["remedy"]


def test_the_number_of_values_is_bounded() -> None:
    with pytest.raises(ImportRefusedError) as yaml:
        parse_document("[" + "1," * MAX_YAML_VALUES + "1]", max_bytes=4 << 20)
    with pytest.raises(ImportRefusedError) as many:
        parse_document(json.dumps([1] * MAX_JSON_VALUES), "application/json", max_bytes=4 << 20)

    assert f"{MAX_YAML_VALUES:,}" in str(yaml.value)
    assert f"{MAX_JSON_VALUES:,}" in str(many.value)


def test_one_large_document_is_read_per_person_at_a_time(api: Any) -> None:
    large = "#" * LARGE_YAML_BYTES + "\nname: x\n"
    alice = User.objects.get(username="alice")

    with (
        audit_context(actor=Actor(user_id=alice.pk, name="alice")),
        one_large_parse(LARGE_YAML_BYTES + 1, LARGE_YAML_BYTES),
    ):
        hers = api("alice").post("/api/v1/jobs/", large, content_type=YAML)
        page = api("alice").post("/submit/check/", {"yaml": large}, format="multipart")
        small = api("alice").post("/api/v1/jobs/", "name: x\n", content_type=YAML)
        his = api("bob").post("/api/v1/jobs/", large, content_type=YAML)
    after = api("alice").post("/api/v1/jobs/", large, content_type=YAML)

    assert (hers.status_code, hers.json()["code"]) == (429, "large-parse-running")
    assert int(hers.headers["Retry-After"]) > 0
    assert (page.status_code, page.headers["Retry-After"]) == (429, hers.headers["Retry-After"])
    assert [answer.status_code for answer in (small, his, after)] == [400, 400, 400]
