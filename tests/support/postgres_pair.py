"""A PostgreSQL primary with a standby that confirms each commit."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import NOBODY, POSTGRES
from tests.support.whole_portal import free_port


@dataclass
class PostgresPair:
    """Two servers by their data directories."""

    folder: Path
    ports: tuple[int, int]

    @property
    def url(self) -> str:
        """Return the address of both servers."""
        first, second = self.ports
        return f"postgres://tessera@127.0.0.1:{first},127.0.0.1:{second}/postgres"

    def kill_primary(self) -> None:
        """Stop the primary without a checkpoint."""
        self.control("a", "-m", "immediate", "stop")

    def promote_standby(self) -> None:
        """Let the standby accept writes, without a standby of its own."""
        self.control("b", "promote")

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
        source = f"host=127.0.0.1 port={pair.ports[0]} user=tessera application_name=b"
        pair.run("pg_basebackup", "-D", str(folder / "b"), "-R", "-X", "stream", "-c", "fast",
                 "-d", source)  # fmt: skip
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
