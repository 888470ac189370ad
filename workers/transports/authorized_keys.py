"""Replacing the control plane's key on a node: add the new one, sign in with it, remove the old.

The program runs on the node with Python 3.8 or newer. It changes only files that contain a key of
the control plane, and copies the options of its line.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Final

import asyncssh

from workers.transports.base import RefusedError, UnreachableNodeError

SECONDS: Final = 20.0
MOST_ERROR: Final = 300
MOST_OUTPUT: Final = 16 << 10

# Constant text, run by python3 on the node. It contains no single quotes, since they enclose it.
# Variable input comes on stdin.
_PROGRAM: Final = """
import json, os, pwd, sys, tempfile
asked = json.loads(sys.stdin.buffer.read(1 << 16))
new, old = asked["new"].split()[:2], [key.split()[:2] for key in asked["old"]]
home, user = os.path.expanduser("~"), pwd.getpwuid(os.getuid()).pw_name

def configured():
    names = ["/etc/ssh/sshd_config"]
    extra = "/etc/ssh/sshd_config.d"
    if os.path.isdir(extra):
        names += [os.path.join(extra, name) for name in sorted(os.listdir(extra))]
    for name in names:
        try:
            with open(name) as file:
                lines = file.read(1 << 20).splitlines()
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words and words[0].lower() == "authorizedkeysfile":
                for word in words[1:]:
                    word = word.replace("%h", home).replace("%u", user).replace("%%", "%")
                    yield os.path.join(home, word)

def read(path):
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(1 << 22).splitlines()
    except OSError:
        return []

def has(line, key):
    return not line.lstrip().startswith("#") and key[1] in line.split()

def write(path, lines):
    known = os.stat(path)
    handle, name = tempfile.mkstemp(dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
            os.fchmod(file.fileno(), known.st_mode & 0o7777)
            if os.getuid() == 0:
                os.fchown(file.fileno(), known.st_uid, known.st_gid)
            file.write("".join(line + chr(10) for line in lines))
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise

names = [os.path.join(home, ".ssh", name) for name in ("authorized_keys", "authorized_keys2")]
ready = 0
for path in dict.fromkeys(os.path.realpath(name) for name in names + list(configured())):
    lines = read(path)
    is_there = any(has(line, new) for line in lines)
    of_old = [line for line in lines if any(has(line, key) for key in old)]
    changed = lines
    if of_old and not is_there:
        key = next(key for key in old if has(of_old[0], key))
        head = of_old[0].split(key[1])[0].rstrip()
        options = head[: -len(key[0])] if head.endswith(key[0]) else head + " "
        changed, is_there = lines + [options + " ".join(new) + " tessera"], True
    if asked["remove"] and is_there:
        changed = [line for line in changed if line not in of_old]
    if changed != lines:
        write(path, changed)
    ready += is_there
if not ready:
    sys.exit("no authorized_keys file of this account contains the key of the control plane")
print(ready)
"""

COMMAND: Final = f"exec python3 -I -S -c '{_PROGRAM}'"


async def authorize(
    connection: asyncssh.SSHClientConnection, *, new: str, old: Sequence[str], remove: bool
) -> None:
    """Add the new public key on the node, and remove the old ones if requested.

    Raises:
        RefusedError: the keys of the account cannot be changed.
        UnreachableNodeError: the connection broke.
    """
    asked = json.dumps({"new": new, "old": list(old), "remove": remove}).encode()
    try:
        async with asyncio.timeout(SECONDS):
            status, output = await _run(connection, asked)
    except TimeoutError:
        raise UnreachableNodeError(f"no reply of the node within {SECONDS:g} s") from None
    except (OSError, asyncssh.Error) as error:
        raise UnreachableNodeError(f"no command on the node: {error}") from error
    if status != 0:
        lines = output.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        # Commands of admins print the cause on a terminal.
        cause = "".join(char if char.isprintable() else "?" for char in lines[-1][:MOST_ERROR])
        raise RefusedError("authorized-keys", cause)


async def _run(connection: asyncssh.SSHClientConnection, asked: bytes) -> tuple[int | None, bytes]:
    """Return the status of the program, and the bounded output of its errors."""
    process = await connection.create_process(COMMAND, encoding=None, stdout=asyncssh.DEVNULL)
    try:
        process.stdin.write(asked)
        process.stdin.write_eof()
        output = b""
        while piece := await process.stderr.read(MOST_OUTPUT):
            output += piece
            if len(output) > MOST_OUTPUT:
                raise RefusedError("authorized-keys", "the node returned too much output")
        await process.wait_closed()
        return process.exit_status, output
    finally:
        process.close()  # without waiting for a node that does not confirm it
