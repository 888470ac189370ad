"""Layout of the data directory, which is private to its owner."""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDir:
    """The layout of one installation's data.

    Attributes:
        root: path of the data directory.
    """

    root: Path

    @property
    def run(self) -> Path:
        """Return the directory of the lock, the process IDs and the heartbeats of this run."""
        return self.root / "run"

    @property
    def logs(self) -> Path:
        """Return the directory of process output (logs of jobs are in ``logs/``)."""
        return self.root / "processes"

    @property
    def redis(self) -> Path:
        """Return the working directory of the embedded Redis."""
        return self.root / "redis"

    @property
    def lock(self) -> Path:
        """Return the lock file that the supervisor of this directory holds."""
        return self.run / "supervisor.lock"

    @property
    def children(self) -> Path:
        """Return the file that lists the processes of the supervisor."""
        return self.run / "children.json"

    @property
    def prepared(self) -> Path:
        """Return the file with the version and database for which ``set_up`` has succeeded."""
        return self.run / "prepared.json"

    @property
    def secret_key(self) -> Path:
        return self.root / "secret_key"

    @property
    def client_key(self) -> Path:
        """Return the private SSH key of the control plane."""
        return self.root / "ssh" / "id_ed25519"

    @property
    def client_public_key(self) -> Path:
        """Return the public SSH key, for ``authorized_keys`` of nodes."""
        return self.client_key.with_suffix(".pub")

    def prepare(self) -> None:
        """Create missing directories and keys, readable only by their owner."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.run, self.logs, self.redis, self.client_key.parent):
            folder.mkdir(exist_ok=True, mode=0o700)
        if not self.secret_key.exists():
            write_private(self.secret_key, secrets.token_urlsafe(50) + "\n")
        if not self.client_key.exists() or not self.client_public_key.exists():
            _make_client_key(self)


def _make_client_key(data: DataDir) -> None:
    import asyncssh  # noqa: PLC0415 half a second that only the first start has to wait

    if not data.client_key.exists():
        made = asyncssh.generate_private_key("ssh-ed25519", comment="tessera")
        write_private(data.client_key, made.export_private_key("openssh").decode())
    key = asyncssh.read_private_key(str(data.client_key))
    write_private(data.client_public_key, key.export_public_key("openssh").decode())


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, readable only by its owner."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
