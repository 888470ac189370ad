"""Two Redis servers and three Sentinels on loopback, and one Redis server with TLS."""

import datetime
import ipaddress
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.servers import stop
from tests.support.waiting import wait_until
from tests.support.whole_portal import free_port

PASSWORD: Final = "redis-password"


@dataclass
class Sentinels:
    """Servers by port; the first one is the first master."""

    servers: "dict[int, subprocess.Popen[bytes]]"
    ports: list[int]
    folder: Path

    @property
    def url(self) -> str:
        """Return the address for the portal."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"sentinel://:{PASSWORD}@{hosts}/mymaster"

    def master(self) -> int:
        """Return the port of the master that the Sentinels know."""
        with redis.Redis(port=self.ports[0], socket_timeout=2) as sentinel:
            return int(sentinel.sentinel_get_master_addr_by_name("mymaster")[1])

    def kill_master(self) -> int:
        """Kill the master; return its port."""
        port = self.master()
        self.servers[port].kill()
        self.servers[port].wait()
        return port

    def restart(self, port: int) -> None:
        """Start a killed server again; the Sentinels make it a replica."""
        self.servers[port] = _launch(self.folder, port)

    def has_replica(self) -> bool:
        """Return whether the replica follows the master that the Sentinels know."""
        with suppress(redis.RedisError):
            master = self.master()
            (other,) = [port for port in self.servers if port != master]
            return _is_linked(other)
        return False


@contextmanager
def sentinels(folder: Path) -> Iterator[Sentinels]:
    """Run the servers inside the block."""
    first, second = free_port(), free_port()
    ports = [free_port() for _ in range(3)]
    common = f"bind 127.0.0.1\nsave ''\nrequirepass {PASSWORD}\nmasterauth {PASSWORD}\n"
    configurations = {
        first: f"port {first}\n{common}",
        second: f"port {second}\n{common}replicaof 127.0.0.1 {first}\n",
    }
    watch = (
        f"bind 127.0.0.1\nsentinel monitor mymaster 127.0.0.1 {first} 2\n"
        f"sentinel auth-pass mymaster {PASSWORD}\n"
        "sentinel down-after-milliseconds mymaster 1000\n"
        "sentinel failover-timeout mymaster 5000\n"
    )
    processes: dict[int, subprocess.Popen[bytes]] = {}
    running = Sentinels({}, ports, folder)
    try:
        for port, text in configurations.items():
            running.servers[port] = _start(folder, port, text)
        wait_until(lambda: _is_linked(second), 30, "the replica")
        for port in ports:
            processes[port] = _start(folder, port, f"port {port}\n{watch}", "--sentinel")
        wait_until(lambda: all(_knows_all(port) for port in ports), 30, "the Sentinels")
        yield running
    finally:
        for process in (*processes.values(), *running.servers.values()):
            stop(process)


def _start(folder: Path, port: int, text: str, *options: str) -> "subprocess.Popen[bytes]":
    place = folder / str(port)
    place.mkdir()
    (place / "redis.conf").write_text(f"{text}dir {place}\n")
    return _launch(folder, port, *options)


def _launch(folder: Path, port: int, *options: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        ["redis-server", str(folder / str(port) / "redis.conf"), *options],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _is_linked(port: int) -> bool:
    with suppress(redis.RedisError), redis.Redis(port=port, password=PASSWORD) as server:
        return bool(server.info("replication").get("master_link_status") == "up")
    return False


def _knows_all(port: int) -> bool:
    with suppress(redis.RedisError), redis.Redis(port=port) as sentinel:
        state = sentinel.sentinel_master("mymaster")
        return (state["num-other-sentinels"], state["num-slaves"]) == (2, 1)
    return False


@contextmanager
def redis_with_tls(folder: Path) -> Iterator[str]:
    """Run a server that accepts only TLS; yield its address."""
    port = free_port()
    _make_certificate(folder)
    text = (
        f"port 0\ntls-port {port}\nbind 127.0.0.1\nsave ''\nrequirepass {PASSWORD}\n"
        f"tls-cert-file {folder}/ca.pem\ntls-key-file {folder}/key.pem\n"
        f"tls-ca-cert-file {folder}/ca.pem\ntls-auth-clients no\n"
    )
    process = _start(folder, port, text)
    url = f"rediss://:{PASSWORD}@127.0.0.1:{port}/0?ssl_ca_certs={folder}/ca.pem"

    def answers() -> bool:
        with suppress(redis.RedisError), redis.Redis.from_url(url) as server:
            return bool(server.ping())
        return False

    try:
        wait_until(answers, 30, "Redis with TLS")
        yield url
    finally:
        stop(process)


def _make_certificate(folder: Path) -> None:
    """Write a certificate for 127.0.0.1 that is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "redis")])
    now = datetime.datetime.now(datetime.UTC)
    host = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([host]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
