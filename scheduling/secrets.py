"""Job secrets at rest: encrypted with a key derived from the installation's secret key."""

import hashlib
import hmac
from typing import Final

from cryptography.fernet import InvalidToken

from tenants.keyring import digest_key, secret_keys
from tenants.sealing import is_sealed_with, sealer

_PURPOSE: Final = "tessera.job-secrets.1"


class UnreadableSecretError(Exception):
    """A secret was sealed with another key; enter it again."""


def seal(plain: str) -> bytes:
    """Encrypt and authenticate one secret."""
    return sealer(_PURPOSE, secret_keys()).encrypt(plain.encode())


def unseal(sealed: bytes) -> str:
    """Decrypt a sealed secret.

    Raises:
        UnreadableSecretError: the secret was sealed with another key, or is damaged.
    """
    try:
        return sealer(_PURPOSE, secret_keys()).decrypt(sealed).decode()
    except InvalidToken:
        raise UnreadableSecretError(
            "a job's secret cannot be decrypted with the secret key of this installation"
        ) from None


def is_current(sealed: bytes) -> bool:
    """Return whether a secret is encrypted with the current key."""
    return is_sealed_with(_PURPOSE, secret_keys()[0], sealed)


def is_readable(sealed: bytes) -> bool:
    """Return whether one of the accepted keys decrypts a secret."""
    try:
        unseal(sealed)
    except UnreadableSecretError:
        return False
    return True


def reseal(sealed: bytes) -> bytes | None:
    """Encrypt a sealed secret with the current key; None if it is already.

    Raises:
        UnreadableSecretError: the secret was sealed with another key, or is damaged.
    """
    return None if is_current(sealed) else seal(unseal(sealed))


def fingerprint(content: bytes) -> str:
    """Return a keyed digest; without the key it reveals nothing about secrets in ``content``."""
    key = hashlib.sha256(b"tessera.fingerprints.1:" + digest_key().encode()).digest()
    return hmac.new(key, content, hashlib.sha256).hexdigest()
