"""The own network of plain jobs: what it keeps out of reach, and what works in it."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import escapes
import pytest
from session import Session, declare_isolation, make_spec, wait_until

from tessera import protocol
from tessera.isolation import NETWORK_ISOLATED, NONE, OWN_NETWORK, SHARED_NETWORK
from tessera.job_networks import CONNECTED, ISOLATED
from tessera.node import firewall, networks
from tessera.protocol import RunStatus
from tests.support.network_namespaces import (
    DATAGRAMS,
    METADATA,
    METADATA6,
    NODE,
    NODE6,
    WORLD,
    WORLD6,
    Namespace,
    listener,
    node_in_world,
)

RUNNER = 65_532
CONNECT = (
    "perl -MIO::Socket::INET -e '"
    "for (@ARGV) { $s = IO::Socket::INET->new(PeerAddr => $_, Timeout => 3);"
    ' print "$_ ", ($s ? "open" : "closed"), "\\n" }\' '
)
MEET = (
    "perl -MIO::Socket::INET -e '"
    '$s = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 29500, Listen => 1);'
    ' if (!fork) { $c = IO::Socket::INET->new(PeerAddr => "127.0.0.1:29500");'
    ' print $c "ranks met\\n"; exit } print $s->accept->getline\''
)
WAYS = ("plain", "bound to the interface", "without routes", "both")
PORT, SECOND, PRIVATE = 15001, 15002, 15003
ECHO = f"""exec python3 -u -c '
import hashlib, socket, threading
def serve(host, port):
    server = socket.create_server((host, port), backlog=256)
    print("listens", flush=True)
    while True:
        threading.Thread(target=answer, args=server.accept()).start()
def answer(one, peer):
    received = bytearray()
    while piece := one.recv(1 << 16):
        received += piece
    one.sendall(peer[0].encode() + b" " + hashlib.sha256(received).hexdigest().encode() + b"\\n")
    one.sendall(bytes(len(received)))
    one.close()
for host, port in (("0.0.0.0", {PORT}), ("0.0.0.0", {SECOND}), ("127.0.0.1", {PRIVATE})):
    threading.Thread(target=serve, args=(host, port)).start()
'"""
CLIENT = """
import socket, sys, threading
content = sys.stdin.buffer.read()
def ask(number):
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) as one:
        sender = threading.Thread(target=lambda: (one.sendall(content), one.shutdown(1)))
        sender.start()
        received = bytearray()
        while piece := one.recv(1 << 16):
            received += piece
        sender.join()
    answers[number] = received
count = int(sys.argv[3])
answers = [b""] * count
threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
heads = {bytes(answer.partition(b"\\n")[0]) for answer in answers}
sizes = {len(answer.partition(b"\\n")[2]) for answer in answers}
print(*(head.decode() for head in heads), *sizes)
"""


@pytest.fixture(scope="module")
def places() -> Iterator[tuple[Namespace, Namespace]]:
    with node_in_world() as found:
        yield found


@contextmanager
def session_in(where: Namespace, uid: int, **declared: object) -> Iterator[Session]:
    """A node's session in a network namespace, as root or as an ordinary user."""
    home = Path(tempfile.mkdtemp(prefix="tessera-node-"))
    home.chmod(0o755)
    declare_isolation(home, **declared)
    prefix = list(where.prefix)
    if uid:
        prefix += ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        for path in (home, *home.rglob("*")):
            os.chown(path, uid, uid)
    session = Session(home, python="/usr/bin/python3", prefix=prefix)
    try:
        yield session
    finally:
        session.close()
        shutil.rmtree(home, ignore_errors=True)


def reached(session: Session, targets: list[str], **changes: object) -> tuple[str, set[str]]:
    """The network of a job, and which of the targets it connects to."""
    status, log = session.run(CONNECT + " ".join(targets), **{"network": OWN_NETWORK, **changes})
    said = dict(row.split() for row in log.splitlines())
    assert set(said) == set(targets)
    return status.network, {target for target, found in said.items() if found == "open"}


@contextmanager
def services(places: tuple[Namespace, Namespace]) -> Iterator[tuple[str, list[str]]]:
    """A service of the world, and services that jobs with an own network must not reach."""
    node, world = places
    with ExitStack() as stack:
        outside = stack.enter_context(listener(world, WORLD, 443))
        hidden = [
            stack.enter_context(listener(node, "127.0.0.1", 5432)),
            stack.enter_context(listener(node, NODE, 6379)),
            stack.enter_context(listener(world, METADATA, 80)),
            stack.enter_context(listener(world, "100.100.100.200", 80)),
        ]
        yield outside, hidden


def test_a_connected_network_reaches_the_world_but_neither_node_nor_metadata(
    places: tuple[Namespace, Namespace],
) -> None:
    if not shutil.which(networks.CONNECTOR):
        pytest.skip("needs slirp4netns")
    with session_in(places[0], 0) as session, services(places) as (outside, hidden):
        targets = [outside, *hidden, "10.0.2.2:5432", "10.0.2.2:6379"]

        assert reached(session, targets) == (OWN_NETWORK, {outside})
        assert reached(session, targets, network=SHARED_NETWORK) == (
            SHARED_NETWORK,
            {outside, *hidden},
        )


@pytest.mark.parametrize("uid", [0, RUNNER])
def test_an_isolated_network_reaches_no_service_of_the_node(
    places: tuple[Namespace, Namespace], uid: int
) -> None:
    with (
        session_in(places[0], uid, job_network="isolated") as session,
        services(places) as (outside, hidden),
    ):
        network, found = reached(session, [outside, *hidden])

    assert network == OWN_NETWORK
    assert not found & set(hidden)


@pytest.mark.parametrize("uid", [0, RUNNER])
def test_ranks_of_one_node_meet_on_loopback(places: tuple[Namespace, Namespace], uid: int) -> None:
    with session_in(places[0], uid, job_network="isolated") as session:
        status, log = session.run(MEET, network=OWN_NETWORK)
        again, other = session.run(MEET, network=OWN_NETWORK)

    assert (status.network, log) == (OWN_NETWORK, "ranks met\n")
    assert (again.network, other) == (OWN_NETWORK, "ranks met\n")


@pytest.mark.parametrize(
    ("declared", "changes"),
    [
        ({"job_network": "shared"}, {}),
        ({"job_network": "isolated"}, {"network": SHARED_NETWORK}),
        ({"job_network": "isolated", "strongest": NONE}, {}),
    ],
)
def test_a_network_that_is_shared_is_recorded_as_such(
    places: tuple[Namespace, Namespace], declared: dict[str, str], changes: dict[str, object]
) -> None:
    node, _ = places
    with session_in(node, 0, **declared) as session, listener(node, "127.0.0.1", 5432) as target:
        assert reached(session, [target], **changes) == (SHARED_NETWORK, {target})


def test_the_end_of_a_job_leaves_no_connector(places: tuple[Namespace, Namespace]) -> None:
    if not shutil.which(networks.CONNECTOR):
        pytest.skip("needs slirp4netns")
    with session_in(places[0], 0) as session:
        status, _ = session.run("true", network=OWN_NETWORK)

    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _is_connector(path, status)]
    assert left == []


def _is_connector(path: Path, status: RunStatus) -> bool:
    try:
        words = path.read_bytes().split(b"\0")
    except OSError:
        return False
    return (
        words[0] == networks.CONNECTOR.encode() and f"/proc/{status.pid}/ns/net".encode() in words
    )


def test_no_way_leads_around_the_blocked_addresses(places: tuple[Namespace, Namespace]) -> None:
    """A socket that is bound to the interface ignores routes; nobody answers there, however."""
    node, world = places
    if not shutil.which(networks.CONNECTOR):
        pytest.skip("needs slirp4netns")
    resolver = next(iter(firewall.resolvers()), "")
    with ExitStack() as stack:
        session = stack.enter_context(session_in(node, 0))
        if resolver:  # the node's resolver is in the world, with another service beside it
            world.run("ip", "addr", "replace", f"{resolver}/32", "dev", "lo")
            stack.enter_context(listener(world, resolver, 53))
            stack.enter_context(listener(world, resolver, 6379))
        outside = [
            stack.enter_context(listener(world, WORLD, 443)),
            *(["10.0.2.3:53"] if resolver else []),
        ]
        hidden = [
            stack.enter_context(listener(world, METADATA, 80)),
            stack.enter_context(listener(node, NODE, 6379)),
            stack.enter_context(listener(node, "127.0.0.1", 6379)),
            *("10.0.2.2:6379", "10.0.2.3:6379", "255.255.255.255:6379", "0.0.0.0:6379"),
        ]
        for address in (WORLD6, NODE6, METADATA6):
            stack.enter_context(listener(world if address != NODE6 else node, address, 80))
            hidden.append(f"[{address}]:80")
        answered = stack.enter_context(listener(world, WORLD, 5000, DATAGRAMS))
        stack.enter_context(listener(node, "0.0.0.0", 5001, DATAGRAMS))
        silent = [f"{host}:5001" for host in (NODE, "10.0.2.2", "10.0.2.3", "255.255.255.255")]
        known = {"tcp": [*outside, *hidden], "udp": [answered, *silent]}
        spec = make_spec(f"exec python3 escapes.py '{json.dumps(known)}'", network=OWN_NETWORK)
        session.prepare(spec)
        shutil.copy(escapes.__file__, session.directory(spec) / "work" / "escapes.py")
        session.go(spec)
        session.exit_of(spec, 120)
        done = json.loads(session.log(spec).splitlines()[-1])

    open_to_all = [f"tcp {one} {way}" for one in outside for way in WAYS]
    open_to_all += [f"udp {answered} {way}" for way in WAYS]
    assert {f"tcp {outside[0]} plain", f"udp {answered} plain"} <= set(done) <= set(open_to_all)


# -- declared ports ------------------------------------------------------------------------------


@contextmanager
def server(session: Session, **changes: object) -> Iterator[protocol.RunStatus]:
    """A job that serves at its ports."""
    spec = make_spec(ECHO, network=OWN_NETWORK, **{"ports": [PORT, SECOND, PRIVATE], **changes})
    session.start(spec)
    wait_until(lambda: session.log(spec).count("listens") == 3, "the job listens")
    try:
        yield session.status(spec)
    finally:
        session.ask("stop", run_id=spec.run_id, grace_seconds=0, reason="user")
        session.exit_of(spec)


def asked(where: Namespace, address: str, port: int, content: bytes = b"x", count: int = 1) -> str:
    """The answers that clients get, each once; empty when no client gets one."""
    command = [*where.prefix, "python3", "-c", CLIENT, address, str(port), str(count)]
    done = subprocess.run(
        command, input=content, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    )
    answer = done.stdout.decode().strip()
    return "" if answer == "0" else answer  # the connection ended without an answer


@pytest.mark.parametrize(("uid", "setting"), [(0, "isolated"), (RUNNER, "isolated"), (0, "auto")])
def test_declared_ports_are_published_from_an_own_network(
    places: tuple[Namespace, Namespace], uid: int, setting: str
) -> None:
    node, world = places
    content = os.urandom(3 << 20)
    expected = f"192.0.0.8 {hashlib.sha256(content).hexdigest()} {len(content)}"
    if setting == "auto" and not shutil.which(networks.CONNECTOR):
        pytest.skip("needs slirp4netns")
    with session_in(node, uid, job_network=setting) as session, server(session) as status:
        assert status.network == OWN_NETWORK
        assert asked(world, NODE, PORT, content) == expected
        assert asked(world, NODE, SECOND, content, count=20) == expected
        assert asked(node, "127.0.0.1", PORT, content) == expected
        assert asked(node, "::1", PORT, content) == expected

    assert asked(node, "127.0.0.1", PORT) == ""


def test_a_server_on_loopback_is_not_published(places: tuple[Namespace, Namespace]) -> None:
    node, _ = places
    with session_in(node, 0, job_network="isolated") as session, server(session):
        assert asked(node, "127.0.0.1", PRIVATE).split()[-1:] != ["1"]
        assert asked(node, "127.0.0.1", PORT).split()[-1:] == ["1"]


def test_ports_are_published_at_the_address_of_the_spec(
    places: tuple[Namespace, Namespace],
) -> None:
    node, world = places
    with (
        session_in(node, 0, job_network="isolated") as session,
        server(session, bind_host="127.0.0.1"),
    ):
        assert asked(node, "127.0.0.1", PORT)
        assert not asked(world, NODE, PORT)


@pytest.mark.parametrize(("uid", "setting"), [(0, "isolated"), (RUNNER, "isolated"), (0, "auto")])
def test_a_job_with_ports_reaches_no_service_of_its_node(
    places: tuple[Namespace, Namespace], uid: int, setting: str
) -> None:
    """As a job of the demo: the portal, Redis and PostgreSQL listen on the node."""
    node, _ = places
    with ExitStack() as stack:
        session = stack.enter_context(session_in(node, uid, job_network=setting))
        hosts = ["127.0.0.1", NODE]
        services = [
            stack.enter_context(listener(node, host, port))
            for host in hosts
            for port in (8000, 6379, 5432)
        ]
        gateway = [f"{host}:{port}" for host in ("10.0.2.2", "10.0.2.3") for port in (8000, 6379)]
        network, found = reached(session, [*services, *gateway], ports=[PORT])

    assert (network, found) == (OWN_NETWORK, set())


def test_a_port_that_was_taken_meanwhile_fails_the_start(
    places: tuple[Namespace, Namespace],
) -> None:
    node, _ = places
    spec = make_spec("true", network=OWN_NETWORK, ports=[PORT])
    with session_in(node, 0, job_network="isolated") as session:
        session.prepare(spec)
        with listener(node, "0.0.0.0", PORT):
            session.go(spec)
            end = session.exit_of(spec)

    assert end.exit is not None
    assert (end.exit.cause, end.exit.failure) == (protocol.CAUSE_START, protocol.NODE)
    assert f"port {PORT} on all addresses" in end.exit.message


def test_a_job_without_a_connection_carries_a_warning(
    places: tuple[Namespace, Namespace],
) -> None:
    with session_in(places[0], RUNNER, job_network="isolated") as session:
        isolated, _ = session.run("true", network=OWN_NETWORK)
        shared, _ = session.run("true", network=SHARED_NETWORK)

    assert (NETWORK_ISOLATED in isolated.warnings) == (not may_open_tun())
    assert NETWORK_ISOLATED not in shared.warnings


def may_open_tun() -> bool:
    """Whether an ordinary user can connect a network of this machine."""
    tun = Path("/dev/net/tun")
    is_open = tun.exists() and tun.stat().st_mode & 0o006 == 0o006
    return is_open and shutil.which(networks.CONNECTOR) is not None


# -- settings and probes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "setting", "expected"),
    [
        ("isolated", "", OWN_NETWORK),
        ("shared", "", SHARED_NETWORK),
        ("shared", "isolated", OWN_NETWORK),
        ("isolated", "shared", SHARED_NETWORK),
    ],
)
def test_the_setting_of_the_portal_comes_before_the_file_of_the_node(
    places: tuple[Namespace, Namespace], declared: str, setting: str, expected: str
) -> None:
    with session_in(places[0], 0, job_network=declared) as session:
        status, _ = session.run("true", network=OWN_NETWORK, job_network=setting)

    assert status.network == expected


def test_a_node_reports_what_its_networks_can_do_and_why_not_more(
    places: tuple[Namespace, Namespace],
) -> None:
    node, _ = places
    with session_in(node, 0, job_network="isolated") as session:
        found = protocol.Inventory.from_json(session.ask(protocol.PROBE)["inventory"])
    networks_found = {probe.network: probe for probe in found.networks}

    assert found.job_network == "isolated"
    assert networks_found[ISOLATED].available
    connected = networks_found[CONNECTED]
    assert connected.available != bool(connected.cause)
    if shutil.which(networks.CONNECTOR):
        assert connected.available, connected.detail
        assert set(networks.PROTECTIONS) <= set(connected.means), connected.detail
