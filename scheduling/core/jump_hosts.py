"""Jump hosts of nodes as text: ``user@host:port``."""

import re
from collections.abc import Mapping
from typing import Any, Final

_SSH_PORT: Final = 22
_JUMP: Final = re.compile(
    r"(?P<user>[^@\s]{1,63})@(?:\[(?P<v6>[0-9A-Fa-f:]{2,45})\]|(?P<host>[^:@\s\[\]]{1,255}))"
    r"(?::(?P<port>[0-9]{1,5}))?"
)


def parse_jump_host(text: str) -> dict[str, Any] | None:
    """Return host, port and user of ``USER@HOST[:PORT]``; None if the text has another form."""
    found = _JUMP.fullmatch(text.strip())
    if found is None:
        return None
    port = int(found["port"] or _SSH_PORT)
    return {"host": found["v6"] or found["host"], "port": port, "user": found["user"]}


def jump_host_text(jump: Mapping[str, Any]) -> str:
    """Return a jump host as ``user@host:port``; empty for a direct connection."""
    if not jump:
        return ""
    host = f"[{jump['host']}]" if ":" in jump["host"] else jump["host"]
    return f"{jump['user']}@{host}:{jump['port']}"
