"""Encryption at rest with keys derived from secrets of the installation."""

import base64
import hashlib
from functools import lru_cache

from cryptography.fernet import Fernet, InvalidToken, MultiFernet


@lru_cache(maxsize=16)
def sealer(purpose: str, secrets: tuple[str, ...]) -> MultiFernet:
    """Return a cipher that encrypts with the first secret and decrypts with each of them.

    Args:
        purpose: separates the keys of different uses of a secret; part of stored values.
        secrets: secrets with at least 128 bits of randomness.
    """
    return MultiFernet([_fernet(purpose, secret) for secret in secrets])


def is_sealed_with(purpose: str, secret: str, sealed: bytes) -> bool:
    """Return whether a value was encrypted with this secret."""
    try:
        _fernet(purpose, secret).decrypt(sealed)
    except InvalidToken:
        return False
    return True


def _fernet(purpose: str, secret: str) -> Fernet:
    digest = hashlib.sha256(f"{purpose}:{secret}".encode()).digest()
    return Fernet(base64.urlsafe_b64encode(digest))
