"""Upload of the scripts that a job specification names, as the source of the job."""

import gzip
import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tessera.cli.exits import UsageError
from tessera.client import Client, Spec

MOST_BYTES: Final = 64 << 20
_FILE_NAME: Final = re.compile(r"[\w.-]+\.\w{1,8}")


def with_upload(spec: Spec, words: Sequence[str], client: Client) -> Spec:
    """Upload the scripts of a specification file, and return the specification with the archive.

    Raises:
        UsageError: there is no file, it is not a native specification, it has a source, or its
            commands name no file next to it.
    """
    if len(words) != 1 or words[0] == "-":
        raise UsageError("--upload needs the name of a specification file")
    path = Path(words[0])
    document = yaml.safe_load(spec) if isinstance(spec, str) else spec
    roles = document.get("roles") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(roles, dict):
        raise UsageError(f"{path} is not a native job specification: --upload does not apply")
    if document.get("source"):
        raise UsageError(f"{path} has a source: use it, or --upload")
    scripts = scripts_of(roles, path.parent)
    if not scripts:
        raise UsageError(f"no command in {path} names a file of {path.parent}")
    named = str(document.get("virtual_cluster", ""))
    tenant = next((vc.tenant for vc in client.virtual_clusters() if vc.name == named), "")
    stored = client.upload(f"{path.stem}.tar.gz", packed(scripts), tenant=tenant)
    return {**document, "source": {"archive": stored}}


def scripts_of(roles: Mapping[str, Any], directory: Path) -> list[Path]:
    """Return the files directly in ``directory`` that the commands of the roles name, sorted."""
    commands = [str(role.get("command", "")) for role in roles.values() if isinstance(role, dict)]
    named = {word for command in commands for word in _FILE_NAME.findall(command)}
    return sorted(
        path
        for path in (directory / name for name in named)
        if path.is_file() and not path.is_symlink()
    )


def packed(scripts: Sequence[Path], *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return a tar.gz of the files, the same bytes for the same files.

    Raises:
        UsageError: the files have more than ``most_bytes``.
    """
    if sum(script.stat().st_size for script in scripts) > most_bytes:
        raise UsageError(f"the files have more than {most_bytes >> 20} MiB: fetch data in the job")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for script in scripts:
            content = script.read_bytes()
            entry = tarfile.TarInfo(script.name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), mtime=0)
