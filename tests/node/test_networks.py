"""The own network of plain jobs: what it keeps out of reach, and what works in it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from session import Session, declare_isolation

from tessera.isolation import NONE, OWN_NETWORK, SHARED_NETWORK
from tessera.node import firewall, networks
from tests.support.network_namespaces import (
    METADATA,
    NODE,
    WORLD,
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
    if not shutil.which(networks.CONNECTOR) or not firewall.tool():
        pytest.skip("needs slirp4netns, and iptables or nft")
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
        ({"job_network": "isolated"}, {"ports": [15001]}),
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


def _is_connector(path: Path, status: object) -> bool:
    try:
        words = path.read_bytes().split(b"\0")
    except OSError:
        return False
    return (
        words[0] == networks.CONNECTOR.encode() and f"/proc/{status.pid}/ns/net".encode() in words
    )  # type: ignore[attr-defined]
