"""The sign-in page: who gets in, and who has guessed too often."""

import re
from typing import Any

import pytest
from django.test import Client

from portal.sign_in import DEVICE_COOKIE
from tenants.clock import database_now
from tenants.models import AuditEntry, User
from tenants.services import issue_password_link
from tenants.services.sign_in import MOST_RECORDED
from tenants.throttling import FREE_OF_PAIR, FREE_OF_SOURCE
from tests.factories.tenants import PASSWORD, SYSTEM, make_user

pytestmark = pytest.mark.django_db

URL = "/login/"


HERE, ELSEWHERE = "192.0.2.1", "198.51.100.7"


def sign_in(
    client: Client, password: str = PASSWORD, *, address: str = HERE, name: str = "alice"
) -> Any:
    return client.post(URL, {"username": name, "password": password}, REMOTE_ADDR=address)


def guess(address: str, times: int, *, name: str = "alice") -> list[int]:
    """The statuses of wrong guesses, each from a browser without cookies."""
    return [
        sign_in(Client(), "wrong", address=address, name=name).status_code for _ in range(times)
    ]


def recorded(action: str) -> Any:
    return AuditEntry.objects.unscoped().filter(action=action)


def test_the_right_password_opens_the_overview(client: Client) -> None:
    make_user("alice")

    response = sign_in(client)

    assert (response.status_code, response.headers["Location"]) == (302, "/")


def test_a_wrong_password_and_an_unknown_name_are_told_the_same(client: Client) -> None:
    unknown = sign_in(client, "mistyped")
    make_user("alice")

    wrong = sign_in(client, "mistyped")

    said = [answer.context["form"].non_field_errors() for answer in (unknown, wrong)]
    assert said[0] == ["Username or password is wrong. Passwords are case-sensitive."]
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


def test_who_guesses_too_often_waits_with_the_right_password_too(client: Client) -> None:
    make_user("alice")
    guess(HERE, FREE_OF_PAIR)

    waits = sign_in(client)

    assert waits.status_code == 429
    assert 1 <= int(waits.headers["Retry-After"]) <= 2
    assert "Sign-in is delayed for" in waits.content.decode()
    assert "sessionid" not in waits.cookies


def test_the_address_that_a_caller_claims_changes_nothing(client: Client) -> None:
    make_user("alice")

    statuses = [
        client.post(
            URL,
            {"username": "alice", "password": "wrong"},
            REMOTE_ADDR=HERE,
            headers={"X-Forwarded-For": f"203.0.113.{number}"},
        ).status_code
        for number in range(FREE_OF_PAIR + 5)
    ]

    assert statuses == [200] * FREE_OF_PAIR + [429] * 5


def test_one_address_that_tries_many_names_waits(client: Client) -> None:
    statuses = [guess(HERE, 1, name=f"user{number}")[0] for number in range(FREE_OF_SOURCE + 5)]

    assert statuses == [200] * FREE_OF_SOURCE + [429] * 5


def test_failures_elsewhere_delay_no_known_address_and_no_known_device(client: Client) -> None:
    make_user("alice")
    assert sign_in(client).status_code == 302
    for number in range(5):
        guess(f"198.51.100.{number}", FREE_OF_PAIR + 1)

    known_address = sign_in(Client())
    travelling = Client()
    travelling.cookies[DEVICE_COOKIE] = client.cookies[DEVICE_COOKIE].value
    known_device = sign_in(travelling, address="198.51.100.1")
    unknown = sign_in(Client(), address="198.51.100.1")

    assert [known_address.status_code, known_device.status_code] == [302, 302]
    assert unknown.status_code == 429


def test_a_colleague_who_guesses_from_the_same_address_delays_no_known_device(
    client: Client,
) -> None:
    make_user("alice")
    sign_in(client)
    guess(HERE, FREE_OF_PAIR + 1)

    device = Client()
    device.cookies[DEVICE_COOKIE] = client.cookies[DEVICE_COOKIE].value

    assert sign_in(Client()).status_code == 429
    assert sign_in(device).status_code == 302


def test_the_cookie_of_a_device_cannot_be_forged_and_counts_for_its_own_person(
    client: Client,
) -> None:
    make_user("alice")
    make_user("bob")
    sign_in(client, name="bob")
    cookie = client.cookies[DEVICE_COOKIE]
    guess(ELSEWHERE, FREE_OF_PAIR)

    statuses = []
    for value in (cookie.value, cookie.value[:-1] + "x", "x"):
        other = Client()
        other.cookies[DEVICE_COOKIE] = value
        statuses.append(sign_in(other, address=ELSEWHERE).status_code)

    assert statuses == [429, 429, 429]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Lax"


def test_a_password_link_makes_the_browser_known(client: Client) -> None:
    make_user("alice")
    link = issue_password_link(viewer=SYSTEM, username="alice", now=database_now())
    new = "another long sentence"
    guess(ELSEWHERE, FREE_OF_PAIR + 1)

    client.post(
        f"/password/link/{link.secret}/",
        {"password": new, "repeated": new},
        REMOTE_ADDR=HERE,
    )

    assert sign_in(client, new, address=ELSEWHERE).status_code == 302


def test_sign_ins_and_sign_outs_are_recorded_without_secrets(client: Client) -> None:
    make_user("alice")
    sign_in(client, "my other password")
    sign_in(client, "hunter2", name="typed-my-password-here")
    sign_in(client)
    client.post("/logout/", REMOTE_ADDR=HERE)

    failed = list(recorded("user.sign_in_failed").order_by("pk"))
    assert [row.object_name for row in failed] == ["alice", "unknown name"]
    assert {row.actor_name for row in failed} == {"sign-in"}
    for action in ("user.sign_in", "user.sign_out"):
        row = recorded(action).get()
        assert (row.actor_name, row.after["address"]) == ("alice", HERE)
    kept = str(list(AuditEntry.objects.unscoped().values()))
    assert "my other password" not in kept
    assert "typed-my-password-here" not in kept


def test_failed_sign_ins_do_not_flood_the_audit() -> None:
    make_user("alice")
    for number in range(MOST_RECORDED + 5):
        guess(f"2001:db8:{number:x}::1", 1)

    rows = recorded("user.sign_in_failed")
    assert rows.count() == MOST_RECORDED + 1
    assert "not recorded" in rows.first().message


def test_addresses_of_one_ipv6_network_are_one_source() -> None:
    statuses = [guess(f"2001:db8::{number:x}", 1)[0] for number in range(1, FREE_OF_PAIR + 2)]

    assert statuses == [200] * FREE_OF_PAIR + [429]
    assert not User.objects.exists()
