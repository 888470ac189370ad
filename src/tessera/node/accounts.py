"""Temporary use of another account's rights by a process that is root."""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import contextmanager
from typing import Iterator, NamedTuple, Optional, Tuple

_SO_PEERGROUPS = 59
_MOST_GROUP_BYTES = 1_024  # largest buffer of Python's getsockopt


class Account(NamedTuple):
    """A Unix user, its group, and its further groups."""

    uid: int
    gid: int
    groups: Tuple[int, ...] = ()


def peer_of(line: socket.socket) -> Account:
    """Return the account that created the other end of a Unix socket, from the kernel.

    Raises:
        OSError: the descriptor is not a Unix socket.
    """
    _, uid, gid = struct.unpack("iII", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        groups = line.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUP_BYTES)
    except OSError:
        groups = b""  # before Linux 4.13, or over 256 groups: the account's own group suffices
    return Account(uid, gid, struct.unpack(f"{len(groups) // 4}I", groups))


@contextmanager
def acting_as(account: Optional[Account]) -> Iterator[None]:
    """Use files with the rights of an account and no capability; None changes nothing."""
    if account is None:
        yield
        return
    before = os.getgroups()
    os.setgroups(account.groups)
    os.setegid(account.gid)
    os.seteuid(account.uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


def changeable_part(path: str) -> str:
    """Return a part of a path that a user other than root may change or replace; empty if none."""
    here = os.path.realpath(path)
    while True:
        try:
            found = os.stat(here)
        except OSError:
            return here
        if found.st_uid != 0 or stat.S_IMODE(found.st_mode) & 0o022:
            return here
        if here == "/":
            return ""
        here = os.path.dirname(here)
