"""Valid fields of a node."""

import base64
import hashlib
from typing import Any

HOST_KEY_BLOB = len(b"ssh-ed25519").to_bytes(4, "big") + b"ssh-ed25519" + bytes(36)
HOST_KEY = f"ssh-ed25519 {base64.b64encode(HOST_KEY_BLOB).decode()}"
FINGERPRINT = "SHA256:" + base64.b64encode(hashlib.sha256(HOST_KEY_BLOB).digest()).decode().rstrip(
    "="
)
NODE_FIELDS: dict[str, Any] = {
    "name": "gpu-1",
    "host": "gpu-1.example.org",
    "port": 22,
    "user": "tessera",
    "host_key": HOST_KEY,
    "fingerprint": FINGERPRINT,
    "labels": {"rack": "r1"},
}
