"""Password rules beyond those of Django."""

import re
from typing import Final

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from tenants.errors import FieldError
from tenants.messages import sentence
from tenants.models import User

LEAST_DISTINCT: Final = 8
"""Minimum number of characters after removal of repetitions and the owner's names."""
_READ: Final = 256  # characters of a password that the rule reads
_REPEATED: Final = re.compile(r"(.{1,32}?)\1+", re.DOTALL)


class RepetitionValidator:
    """Rejects passwords such as ``bobbobbob1``, and passwords built from the owner's name."""

    def validate(self, password: str, user: AbstractBaseUser | None = None) -> None:
        """Check one password.

        Raises:
            ValidationError: fewer than ``LEAST_DISTINCT`` characters remain.
        """
        rest = password[:_READ].casefold()
        for name in _names_of(user):
            rest = rest.replace(name, "")
        if len(_REPEATED.sub(r"\1", rest)) < LEAST_DISTINCT:
            raise ValidationError(self.get_help_text(), code="password_repeats")

    def get_help_text(self) -> str:
        """Return the rule in one sentence."""
        return _("The password repeats parts of itself or of the user name.")


def password_errors(password: str, user: User) -> list[FieldError]:
    """Return the faults of a new password; none of them repeats it."""
    try:
        validate_password(password, user)
    except ValidationError as error:
        return [
            FieldError(
                field="password", message=message, remedy=sentence("choose-stronger-password")
            )
            for message in error.messages
        ]
    return []


def _names_of(user: AbstractBaseUser | None) -> list[str]:
    parts = {
        part
        for name in ("username", "first_name", "last_name", "email")
        for part in re.split(r"\W+", str(getattr(user, name, "") or "").casefold())
        if len(part) > 2
    }
    return sorted(parts, key=len, reverse=True)
