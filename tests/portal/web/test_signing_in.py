"""The sign-in page: who gets in, and who has guessed too often."""

import re

import pytest
from django.test import Client, override_settings

from tests.factories.tenants import PASSWORD, make_user

pytestmark = pytest.mark.django_db

URL = "/login/"


def sign_in(client: Client, password: str = PASSWORD, *, address: str = "192.0.2.1"):
    return client.post(URL, {"username": "alice", "password": password}, REMOTE_ADDR=address)


def test_the_right_password_opens_the_overview(client: Client) -> None:
    make_user("alice")

    response = sign_in(client)

    assert (response.status_code, response.headers["Location"]) == (302, "/")


def test_a_wrong_password_and_an_unknown_name_are_told_the_same(client: Client) -> None:
    unknown = sign_in(client, "mistyped")
    make_user("alice")

    wrong = sign_in(client, "mistyped")

    said = [answer.context["form"].non_field_errors() for answer in (unknown, wrong)]
    assert len(said[0]) == 1
    assert said[0] == said[1]
    assert "mistyped" not in wrong.content.decode()


def test_after_a_wrong_password_the_focus_is_on_it_and_the_fault_is_told(client: Client) -> None:
    first, wrong = client.get(URL).content.decode(), sign_in(client, "mistyped").content.decode()

    assert re.findall(r'name="(\w+)"[^>]* autofocus', first) == ["username"]
    assert re.findall(r'name="(\w+)"[^>]* autofocus', wrong) == ["password"]
    assert re.search(r'id="sign-in-fault" role="alert"', wrong)
    password = re.search(r'<input[^>]*name="password"[^>]*>', wrong)
    assert password
    assert 'aria-invalid="true"' in password[0]
    assert re.search(r'aria-describedby="[^"]*sign-in-fault"', password[0])


@override_settings(AXES_ENABLED=True, AXES_FAILURE_LIMIT=3)
def test_who_guesses_too_often_is_kept_out_with_the_right_password_too(client: Client) -> None:
    make_user("alice")
    for _ in range(3):
        sign_in(client, "wrong")

    locked = sign_in(client)

    assert locked.status_code == 429
    assert locked.headers["Retry-After"] == "300"
    assert "5 minutes" in locked.content.decode()
    assert "sessionid" not in locked.cookies


@override_settings(AXES_ENABLED=True, AXES_FAILURE_LIMIT=3)
def test_guesses_from_elsewhere_lock_nobody_out(client: Client) -> None:
    make_user("alice")
    for _ in range(4):
        sign_in(client, "wrong", address="198.51.100.7")

    assert sign_in(client).status_code == 302
