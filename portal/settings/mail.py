"""Settings of outgoing mail from one address: ``smtp://``, ``smtp+starttls://``, ``smtps://``."""

from typing import Any, Final
from urllib.parse import unquote, urlsplit

PORTS: Final = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}
SMTP: Final = "django.core.mail.backends.smtp.EmailBackend"
NONE: Final = "django.core.mail.backends.dummy.EmailBackend"
SECONDS: Final = 10


def is_mail_url(url: str) -> bool:
    """Return whether an address is a mail server in one of the three forms."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in PORTS and bool(parts.hostname) and parts.path in ("", "/")


def mail_settings(url: str) -> dict[str, Any]:
    """Return Django's settings for a mail server; without one no mail is sent."""
    if not url:
        return {"EMAIL_BACKEND": NONE}
    parts = urlsplit(url)
    return {
        "EMAIL_BACKEND": SMTP,
        "EMAIL_HOST": parts.hostname,
        "EMAIL_PORT": parts.port or PORTS[parts.scheme],
        "EMAIL_HOST_USER": unquote(parts.username or ""),
        "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
        "EMAIL_USE_TLS": parts.scheme == "smtp+starttls",
        "EMAIL_USE_SSL": parts.scheme == "smtps",
        "EMAIL_TIMEOUT": SECONDS,
    }
