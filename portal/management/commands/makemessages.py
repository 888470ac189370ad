"""``manage.py makemessages``, extended by the message tables."""

from django.core.management.commands import makemessages


class Command(makemessages.Command):
    """Django's command, which also extracts templates of ``tessera.messages``."""

    xgettext_options = [  # noqa: RUF012  Django reads it, nobody changes it
        *makemessages.Command.xgettext_options,
        "--keyword=fixed:1,1t",
        "--keyword=fixed:1,2c,2t",
        "--keyword=counted:1,2",
    ]
