"""Every request has an id."""

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from tenants.audit import current_request_id
from tenants.middleware import HEADER, AuditContextMiddleware


def answer(request):
    return HttpResponse(current_request_id())


def ask(**headers):
    return AuditContextMiddleware(answer)(RequestFactory().get("/", headers=headers))


def test_a_request_without_an_id_gets_one_of_its_own():
    first, second = ask(), ask()

    assert len(first.headers[HEADER]) == 32
    assert first.headers[HEADER] == first.content.decode()
    assert first.headers[HEADER] != second.headers[HEADER]
    assert current_request_id() == ""


def test_a_callers_id_is_kept():
    assert ask(**{HEADER: "build-42.a_b"}).content == b"build-42.a_b"


@pytest.mark.parametrize(
    "given", ["short", "x" * 65, "a b c d e f", "evil\r\nSet-Cookie: a", "ä" * 9]
)
def test_an_id_that_could_do_harm_is_replaced(given):
    assert ask(**{HEADER: given}).headers[HEADER] != given


def test_the_id_is_forgotten_after_an_error():
    def fail(request):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        AuditContextMiddleware(fail)(RequestFactory().get("/"))

    assert current_request_id() == ""
