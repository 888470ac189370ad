"""Linux calls that Python does not offer, and facts of processes from the kernel."""

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from signal import SIGUSR1, SIGUSR2, SIGWINCH

import pytest

from tessera.node import kernel, system

AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="needs root")


def in_child(spaces: int) -> tuple[int, int]:
    """Fork a child into namespaces; its pid as it sees it, and as the parent does."""
    reader, writer = os.pipe()
    pid = kernel.fork_into(spaces)
    if pid == 0:
        os.write(writer, b"%d" % os.getpid())
        os._exit(7)
    os.close(writer)
    seen = int(system.read_all(reader, 100))
    _, status = os.waitpid(pid, 0)
    assert os.WEXITSTATUS(status) == 7
    return seen, pid


def test_a_child_is_forked_into_namespaces_as_their_first_process() -> None:
    user = 0 if os.getuid() == 0 else kernel.CLONE_NEWUSER

    seen, pid = in_child(kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | user)

    assert seen == 1
    assert pid > 1
    assert in_child(0)[0] > 1, "this process stays where it is"


def test_a_child_continues_as_python() -> None:
    reader, writer = os.pipe()
    pid = kernel.fork_into(0)
    if pid == 0:
        again = os.fork()
        if again == 0:
            os.write(writer, b"grandchild")
            os._exit(0)
        os.waitpid(again, 0)
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)

    assert system.read_all(reader, 100) == b"grandchild"


def test_a_refusal_of_the_kernel_is_an_error_with_its_number() -> None:
    with pytest.raises(OSError, match="clone") as refused:
        kernel.fork_into(kernel.CLONE_NEWUSER | 0x200)  # CLONE_FS and an own user namespace

    assert refused.value.errno == errno.EINVAL


def test_a_machine_whose_call_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = os.uname_result(("Linux", "n-1", "6.1", "", "sparc64"))
    monkeypatch.setattr(os, "uname", lambda: unknown)

    with pytest.raises(OSError, match="clone") as refused:
        kernel.fork_into(0)

    assert refused.value.errno == errno.ENOSYS


def test_children_are_listed_until_they_are_reaped() -> None:
    reader, writer = os.pipe()
    pid = kernel.fork_into(0)
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    during = system.children()
    os.close(writer)
    os.close(reader)
    os.waitpid(pid, 0)

    assert during is None or pid in during
    assert pid not in (system.children() or ())


def network_of(process: str) -> int:
    """Inode of the network namespace of a process or thread in /proc."""
    return Path(f"/proc/{process}/ns/net").stat().st_ino


@pytest.fixture
def network() -> Iterator[int]:
    """Descriptor of another network namespace."""
    reader, writer = os.pipe()
    pid = kernel.fork_into(kernel.CLONE_NEWNET)
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    (space,) = kernel.open_network(pid)
    os.close(reader)
    os.close(writer)
    os.waitpid(pid, 0)
    yield space
    os.close(space)


@AS_ROOT
def test_a_process_is_inside_of_a_network_for_a_block_only(network: int) -> None:
    own, other = network_of("thread-self"), os.fstat(network).st_ino

    with kernel.inside_network(network):
        inside = network_of("thread-self")
    with pytest.raises(ValueError, match="of the block"), kernel.inside_network(network):
        raise ValueError("of the block")

    assert inside == other != own
    assert network_of("thread-self") == own


@AS_ROOT
def test_a_process_that_may_not_return_from_a_network_does_not_enter_it() -> None:
    """Root of a user namespace may enter its own networks, but not the one outside."""
    reader, writer = os.pipe()
    pid = kernel.fork_into(kernel.CLONE_NEWUSER)
    if pid == 0:
        try:
            os.write(writer, b"%d" % _errno_of_entering_an_own_network())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)

    assert system.read_all(reader, 100) == b"%d" % errno.EPERM


def _errno_of_entering_an_own_network() -> int:
    """Enter a network of this user namespace; 0 if that succeeds, -1 if it changes the network."""
    outside = network_of("self")
    holder = kernel.fork_into(kernel.CLONE_NEWNET)
    if holder == 0:
        signal.pause()
    space = os.open(f"/proc/{holder}/ns/net", os.O_RDONLY)
    os.kill(holder, signal.SIGKILL)
    try:
        with kernel.inside_network(space):
            return 0
    except OSError as error:
        return error.errno or 0 if network_of("self") == outside else -1


def test_signals_that_a_process_catches_or_ignores_are_listed() -> None:
    before = [signal.signal(number, signal.SIG_DFL) for number in (SIGUSR1, SIGUSR2, SIGWINCH)]
    try:
        signal.signal(SIGUSR1, signal.SIG_IGN)
        signal.signal(SIGUSR2, lambda *_: None)

        found = kernel.handled_signals()
    finally:
        for number, handler in zip((SIGUSR1, SIGUSR2, SIGWINCH), before, strict=True):
            signal.signal(number, handler)

    assert {SIGUSR1, SIGUSR2} <= set(found)
    assert SIGWINCH not in found
