"""One mail to one person, by Django's mail back-end."""

import smtplib
import time

from django.core.mail import EmailMessage

from scheduling.core.notices import mail_text, subject_of
from scheduling.services.notices.deliveries import Outcome, Parcel


def mail(parcel: Parcel, *, sender: str) -> Outcome:
    """Send a delivery to its person.

    Args:
        parcel: the delivery.
        sender: what the mail is from.
    """
    begun = time.monotonic()
    message = EmailMessage(
        subject=_line(f"[Tessera] {subject_of(parcel.body)}"),
        body=mail_text(parcel.body),
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
        return _failed("the mail server refused the address", begun, is_of_one=True)
    except smtplib.SMTPDataError as refused:
        words = f"the mail server refused the mail ({refused.smtp_code})"
        return _failed(words, begun, is_of_one=True)
    except smtplib.SMTPAuthenticationError:
        return _failed("the mail server refused the login", begun)
    except smtplib.SMTPException as error:
        return _failed(f"the mail server refused the mail ({type(error).__name__})", begun)
    except OSError as error:
        return _failed(f"no mail server ({error.strerror or type(error).__name__})", begun)
    return Outcome(seconds=time.monotonic() - begun)


def _failed(words: str, begun: float, *, is_of_one: bool = False) -> Outcome:
    return Outcome(error=words, seconds=time.monotonic() - begun, is_of_one=is_of_one)


def _line(text: str) -> str:
    """Names of jobs are people's own words; a subject is one line."""
    return "".join(c if c.isprintable() else " " for c in text)[:200]
