"""The bundle on a node is hashed at every start, and only the hashed bytes are executed."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tessera import protocol
from tests.support.ssh_node import ssh_node
from tests.workers.transports.conftest import bundle, put_in_place
from workers.transports.ssh import Patience, SshTransport
from workers.transports.uploads import serve_command

HELLO = protocol.encode_line({"id": 1, "op": "hello", "protocol": protocol.PROTOCOL_VERSION})
EVIL = b"import pathlib; pathlib.Path.home().joinpath('EXECUTED').touch()\n"


def place_of(home: Path) -> Path:
    return home / ".tessera" / bundle().sha256 / "node.pyz"


def serve(home: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        ["/bin/sh", "-c", serve_command(bundle().sha256)],
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_the_expected_bundle_serves_and_names_its_path(tmp_path: Path) -> None:
    put_in_place(tmp_path)

    out, _ = serve(tmp_path).communicate(HELLO, timeout=60)

    reply = protocol.decode_line(out.splitlines()[0])
    assert reply["hello"]["bundle"] == str(place_of(tmp_path))


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def replace_by_program(path: Path) -> None:
    path.write_bytes(EVIL)


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "__main__.py").write_bytes(EVIL)


def replace_by_link(path: Path) -> None:
    other = path.with_name("other.pyz")
    path.rename(other)
    path.symlink_to(other)


def replace_folder_by_link(path: Path) -> None:
    other = path.parent.with_name("elsewhere")
    path.parent.rename(other)
    path.parent.symlink_to(other)
    (other / "node.pyz").write_bytes(EVIL)


CHANGES = [append, replace_by_program, replace_by_fifo, replace_by_directory, replace_by_link]


@pytest.mark.parametrize("change", [*CHANGES, replace_folder_by_link])
def test_a_changed_bundle_is_refused_and_not_executed(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    put_in_place(tmp_path)
    change(place_of(tmp_path))

    process = serve(tmp_path)
    out, _ = process.communicate(HELLO, timeout=60)

    assert process.returncode not in (0, 127)
    assert out == b""
    assert not (tmp_path / "EXECUTED").exists()


@pytest.mark.parametrize("change", [*CHANGES, replace_folder_by_link])
async def test_a_changed_bundle_is_installed_again(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    home = tmp_path / "home"
    put_in_place(home)
    change(place_of(home))
    async with ssh_node(tmp_path) as node:
        line = SshTransport(node.address, bundle(), Patience(connect=20.0, request=20.0))

        hello = await line.open()
        await line.close()

    assert hello.bundle == str(place_of(home))
    assert place_of(home).read_bytes() == bundle().data
    assert not (home / "EXECUTED").exists()


SWAP = """
import hashlib, sys
real = hashlib.sha256
def swapping(code):
    found = real(code)
    open(sys.argv[1], "wb").write({evil!r})
    hashlib.sha256 = real
    return found
hashlib.sha256 = swapping
exec({program!r})
"""


def test_a_bundle_that_is_replaced_between_check_and_start_is_not_executed(
    tmp_path: Path,
) -> None:
    put_in_place(tmp_path)
    program = serve_command(bundle().sha256).split("'")[1]
    code = SWAP.format(evil=EVIL, program=program)

    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, place_of(tmp_path), bundle().sha256],
        env={"HOME": str(tmp_path)},
        input=HELLO,
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert place_of(tmp_path).read_bytes() == EVIL
    assert protocol.decode_line(done.stdout.splitlines()[0])["ok"]
    assert not (tmp_path / "EXECUTED").exists()
