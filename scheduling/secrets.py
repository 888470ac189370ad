"""Job secrets at rest: encrypted with a key derived from the installation's secret key."""

import base64
import hashlib
import hmac
from functools import lru_cache

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings


class UnreadableSecretError(Exception):
    """A secret was sealed with another key; enter it again."""


def seal(plain: str) -> bytes:
    """Encrypt and authenticate one secret."""
    return _fernet(settings.SECRET_KEY).encrypt(plain.encode())


def unseal(sealed: bytes) -> str:
    """Decrypt a sealed secret.

    Raises:
        UnreadableSecretError: the secret was sealed with another key, or is damaged.
    """
    try:
        return _fernet(settings.SECRET_KEY).decrypt(sealed).decode()
    except InvalidToken:
        raise UnreadableSecretError(
            "a job's secret cannot be decrypted with the secret key of this installation"
        ) from None


def fingerprint(content: bytes) -> str:
    """Return a keyed digest; without the key it reveals nothing about secrets in ``content``."""
    key = hashlib.sha256(b"tessera.fingerprints.1:" + settings.SECRET_KEY.encode()).digest()
    return hmac.new(key, content, hashlib.sha256).hexdigest()


@lru_cache(maxsize=4)
def _fernet(secret_key: str) -> Fernet:
    digest = hashlib.sha256(b"tessera.job-secrets.1:" + secret_key.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(digest))
