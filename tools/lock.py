"""Resolves the locks in ``requirements/``, each file with its hash."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = Path(sys.executable).with_name("uv")
COMPILE = ("pip", "compile", "--universal", "--python-version", "3.11", "--generate-hashes")
QUIET = ("--no-emit-index-url", "--no-header", "--quiet", "--upgrade")
S3 = ("--extra", "s3")
SERVER = ("--extra", "server", "--extra", "train")
WANTED = {
    "server.txt": (*SERVER, "pyproject.toml"),
    "s3.txt": (*SERVER, *S3, "-c", "requirements/server.txt", "pyproject.toml"),
    "dev.txt": (*SERVER, *S3, "--extra", "dev", "-c", "requirements/server.txt", "pyproject.toml"),
    "bootstrap.txt": ("requirements/bootstrap.in",),
}


def main() -> int:
    """Write every lock; stops at the first that cannot be solved."""
    for name, sources in WANTED.items():
        command = [str(UV), *COMPILE, *QUIET, "-o", f"requirements/{name}", *sources]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if status != 0:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
