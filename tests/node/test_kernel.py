"""Linux calls that Python does not offer, and facts of processes from the kernel."""

import errno
import os

import pytest

from tessera.node import kernel, system


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
