"""Podman's Docker-compatible service for tests, with the image of the Docker engine's tests."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest

from tests.support.docker_engine import connected, import_programs

_CONFIG = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
events_logger = "file"
"""


@contextmanager
def podman_engine(
    place: Path, *, prefix: Sequence[str] = ()
) -> Iterator[tuple[str, docker.APIClient]]:
    """Run the service as root inside the block; yield its socket and a client, or skip the test.

    Args:
        place: directory of its data.
        prefix: command line prefix for a network namespace.
    """
    if not shutil.which("podman") or os.getuid() != 0:
        pytest.skip("needs Podman, and root to run it with its own storage")
    (place / "containers.conf").write_text(_CONFIG)
    socket = f"{place}/p.sock"
    command = [*prefix, "podman", "--storage-driver=vfs", f"--root={place}/root"]
    command += [f"--runroot={place}/runroot", f"--tmpdir={place}/tmp", "--cgroup-manager=cgroupfs"]
    command += [f"--network-config-dir={place}/networks"]
    if shutil.which("runc"):  # crun refuses mixed control groups of both versions
        command += ["--runtime=runc"]
    environment = {**os.environ, "CONTAINERS_CONF": f"{place}/containers.conf"}
    command += ["system", "service", "--time=0", f"unix://{socket}"]
    with (place / "log").open("wb") as log:
        service = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            client = connected(socket)
            import_programs(client)
            yield socket, client
            client.close()
        finally:
            subprocess.run(
                [*command[: command.index("system")], "rm", "--all", "--force", "--time=0"],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=log,
                check=False,
            )
            service.terminate()
            service.wait(30)
            for mounted in _mounts_below(place):
                subprocess.run(["umount", "--lazy", mounted], check=False)


def _mounts_below(place: Path) -> list[str]:
    """Return the remaining mounts, the innermost first."""
    listed = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted((one for one in listed if one.startswith(f"{place}/")), reverse=True)
