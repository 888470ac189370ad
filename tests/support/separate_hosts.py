"""Two hosts that share only PostgreSQL with a standby, Redis with Sentinels, and an object store.

Each host has its own data directory. It reaches the database and the object store by links of its
own, and Redis, whose address it gets from the Sentinels, by packets that the firewall can drop.
"""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import redis

from scheduling.storage.config import StorageConfig
from tests.support.object_store import ObjectStoreServer, StoreGate, running_object_store
from tests.support.postgres_pair import PostgresPair, postgres_pair
from tests.support.sentinels import PASSWORD, Sentinels, sentinels
from tests.support.servers import Link
from tests.support.two_hosts import FIRST_GROUP, Host, TwoHosts, furnish, running_hosts
from tests.support.whole_portal import ADMIN_PASSWORD, free_port


@dataclass
class BothLinks:
    """The links to the primary and to the standby."""

    links: Sequence[Link]

    def cut(self) -> None:
        for link in self.links:
            link.cut()

    def mend(self) -> None:
        for link in self.links:
            link.mend()

    def close(self) -> None:
        for link in self.links:
            link.close()


@dataclass
class StoreLink:
    """The way to the object store, which refuses connections while it is broken."""

    gate: StoreGate

    def cut(self) -> None:
        self.gate.close()

    def mend(self) -> None:
        self.gate.open()

    def close(self) -> None:
        self.gate.close()


@dataclass
class PacketFilter:
    """Drops the packets of a Unix group to ports on loopback."""

    group: int
    ports: Sequence[int]
    _is_cut: bool = False

    def cut(self) -> None:
        if not self._is_cut:
            self._change("-I")
            self._is_cut = True

    def mend(self) -> None:
        if self._is_cut:
            self._change("-D")
            self._is_cut = False

    def close(self) -> None:
        self.mend()

    def _change(self, option: str) -> None:
        ports = ",".join(map(str, self.ports))
        subprocess.run(
            ["iptables", "-w", option, "OUTPUT", "-p", "tcp", "-d", "127.0.0.1",
             "-m", "multiport", "--dports", ports,
             "-m", "owner", "--gid-owner", str(self.group), "-j", "DROP"],
            check=True,
        )  # fmt: skip


@dataclass
class SeparateHosts(TwoHosts):
    """An installation on two hosts without a shared disk.

    Attributes:
        server: the pair of PostgreSQL servers.
        sentinels: the Redis servers with their Sentinels.
        store: the settings of the object store, without a gate.
    """

    server: PostgresPair = field(kw_only=True)
    sentinels: Sentinels = field(kw_only=True)
    store: StorageConfig = field(kw_only=True)

    def variables(self) -> dict[str, str]:
        """Return the environment of a process that uses this installation without the links."""
        return super().variables() | {
            "TESSERA_DATABASE_URL": self.pair_url(self.server.ports),
            "TESSERA_REDIS_URL": self.sentinels.url,
            **_store_variables(self.store, self.store.endpoint),
        }

    def pair_url(self, ports: Sequence[int]) -> str:
        """Return the URL of both database servers at ports on loopback."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"postgresql://tessera@{hosts}/{self.database}"

    def connect_broker(self) -> redis.Redis:
        """Return a connection to the current Redis master."""
        return redis.Redis(port=self.sentinels.master(), password=PASSWORD, socket_timeout=2)


@contextmanager
def separate_hosts(
    folder: Path, *, extra: Mapping[str, dict[str, str]] = MappingProxyType({})
) -> Iterator[SeparateHosts]:
    """Run both hosts inside the block; remove them, their jobs and servers afterwards.

    Args:
        extra: further environment variables of the processes of ``host-a`` and ``host-b``.
    """
    data, servers = folder / "nodes", folder / "redis"
    data.mkdir(mode=0o755)
    servers.mkdir()
    with ExitStack() as stack:
        pair = stack.enter_context(postgres_pair())
        server = stack.enter_context(running_object_store())
        watched = stack.enter_context(sentinels(servers))
        portal = SeparateHosts(
            data, free_port(), server=pair, sentinels=watched, store=server.new_bucket(data)
        )
        with portal.ask("postgres") as connection:
            connection.execute(f"CREATE DATABASE {portal.database}")
        furnish(portal, stack)
        for name in ("host-a", "host-b"):
            portal.hosts.append(_make_host(portal, server, folder / name, extra.get(name, {})))
        with running_hosts(portal):
            yield portal


def _make_host(
    portal: SeparateHosts, server: ObjectStoreServer, data: Path, extra: dict[str, str]
) -> Host:
    data.mkdir(mode=0o700)
    _copy_keys(portal.data, data)
    links = [Link(port) for port in portal.server.ports]
    gate = server.new_gate()
    group = FIRST_GROUP + len(portal.hosts)
    environment = portal.variables() | {
        "TESSERA_DATABASE_URL": portal.pair_url([link.port for link in links]),
        "TESSERA_IMAGES": "ignore",
        "TESSERA_ADMIN_PASSWORD": ADMIN_PASSWORD,
        **_store_variables(portal.store, gate.url),
    }
    del environment["TESSERA_DATA_DIR"]
    ports = [*portal.sentinels.ports, *portal.sentinels.servers]
    return Host(
        data.name,
        data,
        free_port(),
        {
            "database": BothLinks(links),
            "broker": PacketFilter(group, ports),
            "store": StoreLink(gate),
        },
        environment,
        group,
        extra=extra,
    )


def _copy_keys(source: Path, target: Path) -> None:
    """Give a host what ``tessera join`` gives it: the secret that opens the keys."""
    for name in ("seal_secret", "secret_key", "ssh"):
        if (source / name).exists():
            subprocess.run(["cp", "-a", str(source / name), str(target)], check=True)


def _store_variables(config: StorageConfig, endpoint: str) -> dict[str, str]:
    return {
        "TESSERA_STORAGE": f"s3://{config.bucket}/{config.prefix}",
        "TESSERA_STORAGE_ENDPOINT": endpoint,
        "TESSERA_STORAGE_REGION": config.region,
        "TESSERA_STORAGE_ACCESS_KEY": config.access_key,
        "TESSERA_STORAGE_SECRET_KEY": config.secret_key,
    }
