"""Builder of the zipapp that nodes run and jobs import: equal files give equal bytes."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tessera.node import helper

_MODULES = (
    *("__init__.py", "protocol.py", "run_spec.py"),
    *("wire.py", "inventory.py", "isolation.py", "job_networks.py", "hardware.py", "storage.py"),
    "device_sharing.py",
)
_PACKAGES = ("node", "train")
_MAIN = "import sys\n\nfrom tessera.node.__main__ import main\n\nsys.exit(main(sys.argv[1:]))\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A zipapp.

    Attributes:
        sha256: hash of ``data``, in hexadecimal; names the directory on the node.
        data: the file's bytes.
    """

    sha256: str
    data: bytes


def build_helper() -> Bundle:
    """Build the zipapp that a node's owner installs for root, see ``tessera.node.helper``."""
    top = Path(__file__).parent.parent
    files = {name: (top / name).read_bytes() for name in helper.MODULES}
    return _zipped({"__main__.py": helper.MAIN.encode(), **files})


def build_bundle() -> Bundle:
    """Build the zipapp of this installation's node code.

    Times, permissions and order in the archive are fixed, so two servers of one version agree on
    the hash and a node stores one copy.
    """
    package = Path(__file__).parent
    files = {"__main__.py": _MAIN.encode()}
    for name in _MODULES:
        files[f"tessera/{name}"] = (package / name).read_bytes()
    for folder in _PACKAGES:
        for path in (package / folder).rglob("*.py"):
            files[f"tessera/{path.relative_to(package).as_posix()}"] = path.read_bytes()
    bindings = importlib.util.find_spec("pynvml")
    if bindings is not None and bindings.origin:
        # Inside the package, so that a job that imports pynvml gets its own copy.
        files["tessera/node/pynvml.py"] = Path(bindings.origin).read_bytes()
    return _zipped(files)


def _zipped(files: dict[str, bytes]) -> Bundle:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_STORED  # zlib versions deflate differently
            archive.writestr(entry, files[name])
    data = target.getvalue()
    return Bundle(sha256=hashlib.sha256(data).hexdigest(), data=data)
