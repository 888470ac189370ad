"""A container engine for tests, with a small image built from this machine's programs."""

import io
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest

PROGRAMS = ("sh", "sleep", "cat", "id", "env")
IMAGE = "localhost/tessera-test/programs:1"
START_SECONDS = 90.0


@contextmanager
def docker_engine(
    place: Path, *, prefix: Sequence[str] = (), has_bridge: bool | None = None
) -> Iterator[tuple[str, docker.APIClient]]:
    """Run an engine inside the block; yield its socket and a client, or skip the test.

    Args:
        place: directory of its data.
        prefix: command line prefix that runs the engine in a separate network namespace; only
            there it has a bridge and a packet filter.
        has_bridge: whether it has these; by default if there is a prefix.
    """
    if not shutil.which("dockerd") or os.getuid() != 0:
        pytest.skip("needs a Docker engine and root to start it")
    socket = f"{place}/d.sock"
    paths = [f"--{name}={place}/{name}" for name in ("data-root", "exec-root", "pidfile")]
    options = ["--storage-driver=vfs"]
    if not (bool(prefix) if has_bridge is None else has_bridge):
        options += ["--iptables=false", "--bridge=none"]
    with (place / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [*prefix, "dockerd", "--host", f"unix://{socket}", *paths, *options],
            stdout=log,
            stderr=log,
        )
        try:
            client = connected(socket)
            import_programs(client)
            yield socket, client
            client.close()
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(30)
            # The engine leaves this mounted, which prevents the removal of the folder.
            subprocess.run(
                ["umount", "--lazy", f"{place}/exec-root/netns/default"],
                stderr=subprocess.DEVNULL,
                check=False,
            )


def connected(socket: str) -> docker.APIClient:
    """Return a client of an engine that will listen at a socket."""
    deadline = time.monotonic() + START_SECONDS
    while not Path(socket).exists():
        assert time.monotonic() < deadline, "the engine does not start"
        time.sleep(0.05)
    return docker.APIClient(base_url=f"unix://{socket}", version="auto")


def import_programs(client: docker.APIClient) -> None:
    """Build ``IMAGE`` from this machine's programs; Podman ignores a separate tag."""
    client.import_image_from_data(_image(), repository=IMAGE)


def _image() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        seen: set[str] = set()

        def folder_of(name: str) -> None:
            # A folder that is missing in the archive is created without the permission to read it.
            parent = str(Path(name).parent)
            if parent not in (".", *seen):
                folder_of(parent)
                seen.add(parent)
                entry = tarfile.TarInfo(parent)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)

        folder_of("bin/sh")
        for program in PROGRAMS:
            path = shutil.which(program, path="/bin:/usr/bin")
            assert path, program
            archive.add(Path(path).resolve(), f"bin/{program}")
            listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True)
            for word in listed.stdout.split():
                if word.startswith("/") and word not in seen:
                    seen.add(word)
                    folder_of(word.lstrip("/"))
                    archive.add(Path(word).resolve(), word.lstrip("/"))
    return content.getvalue()
