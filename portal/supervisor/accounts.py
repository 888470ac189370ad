"""Creation of the first admin of an installation."""

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction

from tenants import services
from tenants.audit import record
from tenants.models import User
from tenants.viewers import Viewer

ADMIN = "admin"


@transaction.atomic
def ensure_admin(*, password: str, is_chosen: bool) -> dict[str, str]:
    """Create the user ``admin`` if it does not exist; set a chosen password in any case.

    The person who starts the portal owns its data, so a weak password only prints a warning.

    Args:
        password: the password to set.
        is_chosen: whether a person chose the password; a random one is set for a new admin only.

    Returns:
        The password by user name, if the user is new and the password random; else empty.
    """
    viewer = Viewer.system("tessera up")
    user = User.objects.filter(username=ADMIN).first()
    is_new = user is None
    if user is None:
        user = services.create_user(viewer=viewer, username=ADMIN, is_cluster_admin=True)
    if (is_new or is_chosen) and not user.check_password(password):
        _warn_if_weak(password, user)
        user.set_password(password)
        user.save(update_fields=["password"])
        record(actor=viewer, action="user.set_password", obj=user)
    return {ADMIN: password} if is_new and not is_chosen else {}


def _warn_if_weak(password: str, user: User) -> None:
    try:
        validate_password(password, user)
    except ValidationError as error:
        print(f"warning: the admin's password is weak: {' '.join(error.messages)}")
