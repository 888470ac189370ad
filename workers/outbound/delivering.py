"""Sends due deliveries in small batches; a failing receiver delays only itself."""

import logging
import smtplib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.core.mail import EmailMessage

from scheduling.core.messages import sentence
from scheduling.core.notices import mail_text, subject_of
from scheduling.notices.services.addresses import Network
from scheduling.notices.services.deliveries import Outcome, Parcel, claim, due, settle
from workers.outbound.posting import post

log = logging.getLogger(__name__)

AT_ONCE: Final = 100
LONGEST_PASS_SECONDS: Final = 60.0
Letter = Callable[[Mapping[str, Any], str, str], tuple[str, str]]
"""Function that returns subject and text of a mail from event, language and time zone."""


def english(body: Mapping[str, Any], _language: str, _time_zone: str) -> tuple[str, str]:
    """Return subject and text in English."""
    return subject_of(body), mail_text(body)


def mail(parcel: Parcel, *, sender: str, letter: Letter = english) -> Outcome:
    """Send a delivery to its receiver by mail.

    Args:
        parcel: the delivery.
        sender: sender address of the mail.
        letter: writes the text.
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
    """Return a name as one printable line for a subject, since names of jobs are free text."""
    return "".join(c if c.isprintable() else " " for c in text)[:200]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbound:
    """Settings of deliveries.

    Attributes:
        networks: private networks allowed for webhooks.
        sender: sender address of mail; no mail is sent if empty.
        base_url: address of the portal for links; no links if empty.
        letter: writes the mails.
    """

    networks: Sequence[Network] = ()
    sender: str = ""
    base_url: str = ""
    letter: Letter = english


def deliver(
    outbound: Outbound,
    *,
    now: Callable[[], datetime],
    longest_seconds: float = LONGEST_PASS_SECONDS,
    at_once: int = AT_ONCE,
) -> int:
    """Try all due deliveries; returns how many were tried.

    After a failure, the other deliveries of this receiver wait for the next pass, so that a
    receiver without responses does not delay others.
    """
    begun, tried = time.monotonic(), 0
    failed: set[int] = set()
    mail_failed = False
    waiting: deque[int] = deque(due(now=now(), limit=at_once))
    while waiting and tried < at_once and time.monotonic() - begun <= longest_seconds:
        parcel = claim(delivery_id=waiting.popleft(), now=now())
        if parcel is not None:
            outcome = _carried(parcel, outbound)
            settle(delivery_id=parcel.id, outcome=outcome, now=now())
            tried += 1
            if not outcome.is_success:
                log.info("%r was not delivered: %s", parcel, outcome.error)
                if not outcome.is_of_one:
                    if parcel.hook_id is None:
                        mail_failed = True
                    else:
                        failed.add(parcel.hook_id)
                    waiting.clear()
        if not waiting:
            # Skip the later deliveries of a receiver that has failed.
            waiting.extend(
                due(now=now(), limit=at_once, without_hooks=failed, without_mail=mail_failed)
            )
    return tried


def _carried(parcel: Parcel, outbound: Outbound) -> Outcome:
    """Return the outcome, also after an error: without one, the receiver is blocked."""
    try:
        return _carry(parcel, outbound)
    except Exception as error:
        log.exception("%r could not be delivered", parcel)
        return Outcome(
            error=sentence("undelivered-error", error=type(error).__name__), is_of_one=True
        )


def _carry(parcel: Parcel, outbound: Outbound) -> Outcome:
    if parcel.hook_id is not None:
        return post(parcel, networks=outbound.networks)
    if not outbound.sender:
        return Outcome(error=sentence("undelivered-no-mail"), final=True)
    return mail(parcel, sender=outbound.sender, letter=outbound.letter)
