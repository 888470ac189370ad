"""Check whether the database is as this version's ``set_up`` leaves it, to skip the wait."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from portal.supervisor.files import write_private
from portal.supervisor.options import ROOT

ROOMS: Final = ("portal", "scheduling", "tenants", "workers")


def fingerprint(data_dir: Path, environment: Mapping[str, str], root: Path = ROOT) -> str:
    """Hash all that the tables depend on: migrations, packages, and the database itself.

    Args:
        data_dir: folder of the SQLite file if no other database is set.
        environment: of the children.
        root: folder of the project.
    """
    found = hashlib.sha256()
    migrations = (path for room in ROOMS for path in (root / room).glob("migrations/*.py"))
    for path in (root / "requirements" / "server.txt", *sorted(migrations)):
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    found.update(_database(data_dir, environment).encode())
    return found.hexdigest()


def is_prepared(stamp: Path, wanted: str) -> bool:
    """Return whether ``set_up`` has succeeded for this fingerprint."""
    try:
        return bool(json.loads(stamp.read_text())["fingerprint"] == wanted)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def note_prepared(stamp: Path, found: str) -> None:
    """Store it; on a full disk only the next start is slower."""
    with suppress(OSError):
        write_private(stamp, json.dumps({"fingerprint": found}) + "\n")


def _database(data_dir: Path, environment: Mapping[str, str]) -> str:
    url = environment.get("TESSERA_DATABASE_URL", "")
    if url:
        return url
    # A file that was removed or restored differs from the one before.
    try:
        status = (data_dir / "db.sqlite3").stat()
    except OSError:
        return "missing"
    return f"{status.st_dev}:{status.st_ino}"
