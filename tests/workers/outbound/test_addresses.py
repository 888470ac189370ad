"""Where requests may go, and the one connection that they get."""

import ipaddress
import socket
import threading
from collections.abc import Iterator

import pytest

from scheduling.core.notices import sign
from scheduling.notices.services.addresses import is_allowed, read_networks, refusal
from scheduling.notices.services.deliveries import Parcel
from tests.support.receivers import HookServer, hook_server
from workers.outbound.posting import RefusedAddressError, post, resolve

LOOPBACK = read_networks("127.0.0.0/8, ::1")
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def receiver() -> Iterator[HookServer]:
    with hook_server() as server:
        yield server


def parcel(url: str) -> Parcel:
    return Parcel(
        id=1, uid="u-1", event="job.failed", body={"a": "ü"}, hook_id=1, url=url, secret=SECRET
    )


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "ff02::1",
        "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::1", "2001:0:a00:1::1", "198.18.0.1",
        "192.0.0.8", "192.0.0.9", "192.0.0.170", "192.0.0.255", "192.88.99.1", "3fff::1",
        "2001:2::1", "2001:20::1", "2001:db8::1", "240.0.0.1", "203.0.113.1", "::ffff:192.0.0.8",
        "fec0::1", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b:1::1",
    ],
)  # fmt: skip
def test_addresses_in_the_house_are_refused_unless_an_admin_allows_them(address):
    found = ipaddress.ip_address(address)

    assert not is_allowed(found, ())
    plain = getattr(found, "ipv4_mapped", None) or found
    assert is_allowed(found, [ipaddress.ip_network(plain)])


@pytest.mark.parametrize(
    "network",
    [
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
        "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "255.255.255.255/32", "::/128", "::1/128", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64",
        "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7",
        "fe80::/10", "ff00::/8",
    ],
)  # fmt: skip
def test_both_ends_of_each_special_network_are_refused(network):
    found = ipaddress.ip_network(network)

    assert not is_allowed(found[0], ())
    assert not is_allowed(found[-1], ())


def test_public_addresses_are_allowed():
    assert is_allowed(ipaddress.ip_address("93.184.215.14"), ())
    assert is_allowed(ipaddress.ip_address("2606:2800:21f:cb07:6820:80da:af6b:8b2c"), ())
    assert not is_allowed(ipaddress.ip_address("10.0.0.1"), LOOPBACK)


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/", "https://localhost/", "http://[::1]:80/", "https://2130706433/",
        "https://0x7f.1/", "https://[::ffff:127.0.0.1]/", "https://no.such.host.invalid/",
    ],
)  # fmt: skip
def test_no_spelling_of_an_address_leads_into_the_house(url):
    with pytest.raises(RefusedAddressError):
        resolve(url, ())


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/", "https://localhost:8443/", "https://a.localhost./", "https://[::1]/",
        "https://10.1.2.3/", "https://169.254.169.254/latest", "https://[fe80::1]/",
        "https://2130706433/", "https://0x7f.1/", "https://127.1/", "https://[::ffff:10.0.0.1]/",
        "http://example.org/",
    ],
)  # fmt: skip
def test_what_is_typed_and_leads_into_the_house_is_refused_with_a_remedy(url):
    assert "allow" in refusal(url, ())
    assert "TESSERA_HOOK_NETWORKS" in refusal(url, ())


def test_names_and_allowed_networks_are_taken_when_they_are_typed():
    assert refusal("https://hooks.example.org/x", ()) == ""
    assert refusal("https://93.184.215.14/", ()) == ""
    assert refusal("http://127.0.0.1:8080/", LOOPBACK) == ""
    assert refusal("http://localhost/", LOOPBACK) == ""
    assert refusal("http://10.1.2.3/", LOOPBACK)
    assert refusal("http://93.184.215.14/", LOOPBACK).startswith("Use https")


def test_a_host_with_one_private_address_is_refused_as_a_whole(monkeypatch):
    found = [(0, 0, 0, "", (ip, 443)) for ip in ("93.184.215.14", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    with pytest.raises(RefusedAddressError):
        resolve("https://example.org/", ())


def test_the_name_is_asked_once_and_its_address_is_what_is_connected_to(monkeypatch, receiver):
    asked = []
    real = socket.getaddrinfo

    def once(host, port, *rest, **more):
        if host == "hook.example.org":
            asked.append(host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
        return real(host, port, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", once)

    outcome = post(parcel(f"http://hook.example.org:{receiver.port}/"), networks=LOOPBACK)

    assert outcome.is_success
    assert asked == ["hook.example.org"]
    assert receiver.heard[0][1]["host"] == f"hook.example.org:{receiver.port}"


def test_without_tls_only_allowed_networks_are_told(monkeypatch):
    found = [(0, 0, 0, "", ("93.184.215.14", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    with pytest.raises(RefusedAddressError, match="without TLS"):
        resolve("http://example.org/", LOOPBACK)


def test_a_request_is_signed_as_its_receiver_checks_it(receiver):
    outcome = post(parcel(receiver.url), networks=LOOPBACK, now=lambda: 1_700_000_000.4)

    ((path, headers, body),) = receiver.heard
    assert outcome.is_success
    assert (outcome.status, path) == (204, "/hook?key=x")
    assert body == '{"a":"ü"}'.encode()
    assert headers["webhook-id"] == "u-1"
    assert headers["tessera-event"] == "job.failed"
    signed = sign(SECRET, message_id="u-1", timestamp=1_700_000_000, body=body)
    assert headers["webhook-signature"] == signed
    assert headers["webhook-timestamp"] == "1700000000"


def test_the_signature_is_that_of_the_specifications_example():
    signed = sign(
        SECRET,
        message_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        timestamp=1614265330,
        body=b'{"test": 2432232314}',
    )

    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_redirects_are_not_followed(receiver):
    receiver.answers, receiver.headers = [302], {"Location": receiver.url}

    outcome = post(parcel(receiver.url), networks=LOOPBACK)

    assert len(receiver.heard) == 1
    assert "redirects are not followed" in outcome.error


def test_a_receiver_that_never_answers_is_left(receiver):
    receiver.holds = threading.Event()

    outcome = post(parcel(receiver.url), networks=LOOPBACK, whole_seconds=0.3)

    assert outcome.error == "timed out"


def test_who_says_gone_is_not_asked_again(receiver):
    receiver.answers = [410]

    assert post(parcel(receiver.url), networks=LOOPBACK).final


def test_what_is_no_http_is_a_failure_in_plain_words():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(b"<script>secret</script>\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        outcome = post(parcel(f"http://127.0.0.1:{port}/"), networks=LOOPBACK)
        thread.join()

    assert outcome.error == "the response is not valid HTTP"
