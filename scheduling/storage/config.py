"""Settings of the file storage as one frozen value, without credentials in its text."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

DIRECTORY: Final = "directory"
MOST_SPOOL_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Where files are stored.

    Attributes:
        data_dir: data directory of this host: the storage itself, or place of spool and cache.
        bucket: bucket of the object store; empty for the directory.
        prefix: names in the bucket begin with it; empty or ends with ``/``.
        endpoint: address of an S3-compatible service; empty for AWS.
        region: region of the bucket.
        access_key, secret_key: credentials; empty for the default chain of boto3.
        spool_bytes: limit of the files that this host stores later.
    """

    data_dir: Path
    bucket: str = ""
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    spool_bytes: int = MOST_SPOOL_BYTES

    @property
    def is_directory(self) -> bool:
        return not self.bucket


def parse_place(place: str, *, data_dir: Path) -> tuple[Path, str, str]:
    """Parse ``directory``, ``directory:///path`` or ``s3://bucket/prefix``.

    Returns:
        Directory, bucket and prefix. The bucket is empty for a directory.

    Raises:
        ValueError: the text has none of these forms; the message does not repeat it, since it
            may contain credentials.
    """
    if place in ("", DIRECTORY):
        return data_dir, "", ""
    try:
        parts = urlsplit(place)
    except ValueError:
        parts = urlsplit("")
    is_plain = not (parts.query or parts.fragment or "@" in parts.netloc or ":" in parts.netloc)
    if is_plain and parts.scheme == DIRECTORY and not parts.netloc and len(parts.path) > 1:
        return Path(parts.path), "", ""
    prefix = parts.path.strip("/")
    if is_plain and parts.scheme == "s3" and len(parts.netloc) >= 3:
        return data_dir, parts.netloc, f"{prefix}/" if prefix else ""
    raise ValueError("use directory, directory:///path or s3://bucket/prefix without credentials")
