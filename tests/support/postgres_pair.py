"""A PostgreSQL primary with a standby that confirms each commit; their roles can change."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.support.servers import NOBODY, POSTGRES
from tests.support.whole_portal import free_port


@dataclass
class PostgresPair:
    """Two servers by their data directories, ``a`` and ``b``.

    Attributes:
        primary: name of the server that accepts writes.
    """

    folder: Path
    ports: tuple[int, int]
    primary: str = "a"

    @property
    def url(self) -> str:
        """Return the address of both servers."""
        first, second = self.ports
        return f"postgres://tessera@127.0.0.1:{first},127.0.0.1:{second}/postgres"

    @property
    def standby(self) -> str:
        """Return the name of the other server."""
        return "b" if self.primary == "a" else "a"

    @property
    def port(self) -> int:
        """Return the port of the primary."""
        return self.port_of(self.primary)

    def port_of(self, name: str) -> int:
        """Return the port of a server."""
        return self.ports["ab".index(name)]

    def kill_primary(self) -> None:
        """Stop the primary without a checkpoint."""
        self.control(self.primary, "-m", "immediate", "stop")

    def promote_standby(self) -> None:
        """Let the standby accept writes, without a standby of its own."""
        self.control(self.standby, "promote")
        self.primary = self.standby

    def restart(self) -> None:
        """Crash the primary and restart it at once."""
        self.control(self.primary, "-m", "immediate", "-t", "60", "restart")

    def has_standby(self) -> bool:
        """Return whether a standby confirms each commit."""
        with suppress(psycopg.Error), self.connect() as connection:
            found = connection.execute("SELECT sync_state FROM pg_stat_replication").fetchone()
            return found == ("sync",)
        return False

    def rejoin(self) -> None:
        """Make the former primary a standby that confirms each commit of the new primary."""
        name = self.standby
        shutil.rmtree(self.folder / name)
        self.copy_to(name, source=self.port)
        self.start(name, self.port_of(name))
        with self.connect() as connection:
            connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
            connection.execute("SELECT pg_reload_conf()")

    def copy_to(self, name: str, *, source: int) -> None:
        """Make the data directory of a standby from the server at a port."""
        address = f"host=127.0.0.1 port={source} user=tessera application_name={name}"
        self.run("pg_basebackup", "-D", str(self.folder / name), "-R", "-X", "stream",
                 "-c", "fast", "-d", address)  # fmt: skip

    def connect(self) -> "psycopg.Connection[tuple[Any, ...]]":
        """Return a connection to the primary."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="tessera", dbname="postgres", autocommit=True,
        )  # fmt: skip

    def control(self, name: str, *arguments: str) -> None:
        """Run pg_ctl for one server."""
        self.run("pg_ctl", "-w", "-s", "-D", str(self.folder / name), *arguments)

    def start(self, name: str, port: int, more: str = "") -> None:
        """Start one server."""
        options = (
            f"-p {port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off "
            f"-c hot_standby=on {more}"
        )
        log = str(self.folder / f"{name}.log")
        self.control(name, "-l", log, "-o", options, "start")

    def run(self, program: str, *arguments: str) -> None:
        """Run a program of PostgreSQL as an ordinary user."""
        who = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
        subprocess.run(
            [*who, str(max(POSTGRES.glob("*/bin")) / program), *arguments],
            check=True, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip


@contextmanager
def postgres_pair() -> Iterator[PostgresPair]:
    """Run both servers inside the block."""
    # Not below pytest's directories, which other users cannot enter.
    folder = Path(tempfile.mkdtemp(prefix="tessera-pair-"))
    os.chown(folder, NOBODY, NOBODY)
    pair = PostgresPair(folder, (free_port(), free_port()))
    try:
        made = ("-U", "tessera", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8")
        pair.run("initdb", "-D", str(folder / "a"), *made)
        pair.start("a", pair.ports[0])
        pair.copy_to("b", source=pair.ports[0])
        pair.start("b", pair.ports[1])
        # From now on, a commit waits for the standby.
        pair.control("a", "-m", "fast", "stop")
        pair.start("a", pair.ports[0], "-c synchronous_standby_names=b")
        yield pair
    finally:
        for name in ("a", "b"):
            subprocess.run(
                ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
                 str(max(POSTGRES.glob("*/bin")) / "pg_ctl"), "-D", str(folder / name), "-s",
                 "-m", "immediate", "stop"],
                check=False, cwd="/", stderr=subprocess.DEVNULL,
            )  # fmt: skip
        shutil.rmtree(folder, ignore_errors=True)
