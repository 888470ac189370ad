"""One mail to one person, by Django's mail back-end."""

import smtplib
import time
from collections.abc import Callable, Mapping
from typing import Any

from django.core.mail import EmailMessage

from scheduling.core.messages import sentence
from scheduling.core.notices import mail_text, subject_of
from scheduling.notices.services.deliveries import Outcome, Parcel

Letter = Callable[[Mapping[str, Any], str, str], tuple[str, str]]
"""Subject and text of a mail: from the event, and the language and time zone of the person."""


def english(body: Mapping[str, Any], _language: str, _time_zone: str) -> tuple[str, str]:
    """The letter that needs no translation."""
    return subject_of(body), mail_text(body)


def mail(parcel: Parcel, *, sender: str, letter: Letter = english) -> Outcome:
    """Send a delivery to its person.

    Args:
        parcel: the delivery.
        sender: what the mail is from.
        letter: puts it into words.
    """
    begun = time.monotonic()
    subject, text = letter(parcel.body, parcel.language, parcel.time_zone)
    message = EmailMessage(
        subject=_line(f"[Tessera] {subject}"),
        body=text,
        from_email=sender,
        to=[parcel.address],
        headers={
            "Auto-Submitted": "auto-generated",
            "Message-ID": f"<{parcel.uid}@{sender.rpartition('@')[2].rstrip('>') or 'tessera'}>",
            "X-Tessera-Event": parcel.event,
        },
    )
    try:
        message.send()
    except smtplib.SMTPRecipientsRefused:
        return _failed(sentence("undelivered-address-refused"), begun, is_of_one=True)
    except smtplib.SMTPDataError as refused:
        words = sentence("undelivered-mail-refused", error=refused.smtp_code)
        return _failed(words, begun, is_of_one=True)
    except smtplib.SMTPAuthenticationError:
        return _failed(sentence("undelivered-login-refused"), begun)
    except smtplib.SMTPException as error:
        return _failed(sentence("undelivered-mail-refused", error=type(error).__name__), begun)
    except OSError as error:
        return _failed(
            sentence("undelivered-no-mail-server", error=error.strerror or type(error).__name__),
            begun,
        )
    return Outcome(seconds=time.monotonic() - begun)


def _failed(words: str, begun: float, *, is_of_one: bool = False) -> Outcome:
    return Outcome(error=words, seconds=time.monotonic() - begun, is_of_one=is_of_one)


def _line(text: str) -> str:
    """Names of jobs are people's own words; a subject is one line."""
    return "".join(c if c.isprintable() else " " for c in text)[:200]
