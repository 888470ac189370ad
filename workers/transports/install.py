"""Installation of the node part: one file per version, verified by its hash."""

from typing import Final

from tessera import protocol

# Constant text, run by python3 on the node. Variable input comes on stdin: a line with size and
# hash, then the bytes. It is enclosed in single quotes, so it has none.
_PROGRAM: Final = """
import hashlib, json, os, sys, tempfile
take = sys.stdin.buffer
head = json.loads(take.readline())
body = take.read(head["size"])
if hashlib.sha256(body).hexdigest() != head["sha256"]:
    sys.exit("the bundle arrived damaged")
place = os.path.join(os.path.expanduser("~"), ".tessera", head["sha256"])
target = os.path.join(place, "node.pyz")
for path, good in ((place, os.path.isdir), (target, os.path.isfile)):
    if os.path.lexists(path) and (os.path.islink(path) or not good(path)):
        os.rename(path, tempfile.mktemp(dir=os.path.dirname(path), prefix="replaced-"))
os.makedirs(place, 0o700, exist_ok=True)
handle, name = tempfile.mkstemp(dir=place)
with os.fdopen(handle, "wb") as file:
    file.write(body)
    file.flush()
    os.fsync(file.fileno())
os.chmod(name, 0o644)
os.replace(name, target)
print("installed")
"""

INSTALL_COMMAND: Final = f"exec python3 -I -S -c '{_PROGRAM}'"

# Hashes the bytes that it then executes: they are in memory that no process can change, so
# that neither the file nor its directory has to be out of the reach of jobs.
_START: Final = """
import fcntl, hashlib, os, sys
path, sha256 = sys.argv[1:3]
handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
with os.fdopen(handle, "rb") as file:
    code = file.read(64 << 20) or b""
if hashlib.sha256(code).hexdigest() != sha256:
    sys.exit("the bundle on the node is not the expected one")
try:
    sealed = os.memfd_create("tessera", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
except AttributeError:
    import tempfile
    unnamed = tempfile.TemporaryFile()
    sealed = unnamed.fileno()
rest = memoryview(code)
while rest:
    rest = rest[os.write(sealed, rest):]
try:
    fcntl.fcntl(sealed, 1033, 15)
except OSError:
    pass
sys.path.insert(0, "/proc/self/fd/%d" % sealed)
from tessera.node.__main__ import main
sys.exit(main(["serve"], path))
"""


def serve_command(sha256: str) -> str:
    """The command of sessions; it refuses a bundle without this hash."""
    checked = protocol.check_sha256(sha256)
    place = f'"$HOME/{protocol.ROOT_DIR}/{checked}/node.pyz"'
    return f"exec python3 -I -S -c '{_START}' {place} {checked}"
