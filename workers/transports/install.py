"""The node's part as a file on the node: put there once per version, checked before it counts."""

from typing import Final

from tessera import protocol

# Constant text, run by python3 on the node. What varies comes on stdin: a line with size and hash,
# then the bytes. It has no single quote, since it stands between two of them.
_PROGRAM: Final = """
import hashlib, json, os, sys, tempfile
take = sys.stdin.buffer
head = json.loads(take.readline())
body = take.read(head["size"])
if hashlib.sha256(body).hexdigest() != head["sha256"]:
    sys.exit("the bundle arrived damaged")
place = os.path.join(os.path.expanduser("~"), ".tessera", head["sha256"])
os.makedirs(place, 0o700, exist_ok=True)
handle, name = tempfile.mkstemp(dir=place)
with os.fdopen(handle, "wb") as file:
    file.write(body)
    file.flush()
    os.fsync(file.fileno())
os.chmod(name, 0o644)
os.replace(name, os.path.join(place, "node.pyz"))
print("installed")
"""

INSTALL_COMMAND: Final = f"exec python3 -I -S -c '{_PROGRAM}'"


def serve_command(sha256: str) -> str:
    """The one command that sessions run; nothing of a user is in it."""
    return f'exec python3 -I -S "$HOME/.tessera/{protocol.check_sha256(sha256)}/node.pyz" serve'
