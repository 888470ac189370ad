"""The format of a one-time token with which a further control host gets its environment."""

import base64
import hashlib
import re
from typing import Final

_TOKEN: Final = re.compile(r"tsj-([0-9a-f]{32})-([A-Za-z0-9_-]{43})")
PATH: Final = "/join/"


def make_token(bundle_id: str, secret: str) -> str:
    """Return the token of a bundle: its ID (32 hexadecimal digits) and 32 random bytes."""
    return f"tsj-{bundle_id}-{secret}"


def split_token(token: str) -> tuple[str, str]:
    """Return the ID and the secret of a token.

    Raises:
        ValueError: the text is not a token.
    """
    match = _TOKEN.fullmatch(token.strip())
    if match is None:
        raise ValueError("not a join token")
    return match[1], match[2]


def bundle_key(secret: str) -> bytes:
    """Derive the key (Fernet) that encrypts the bundle."""
    digest = hashlib.sha256(f"tessera.join.1:{secret}".encode()).digest()
    return base64.urlsafe_b64encode(digest)
