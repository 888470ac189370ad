"""Collects the words to be translated, those of the tables of messages included."""

from django.core.management.commands import makemessages


class Command(makemessages.Command):
    """As Django's, with the functions that make templates (``tessera.messages``)."""

    xgettext_options = [  # noqa: RUF012  Django reads it, nobody changes it
        *makemessages.Command.xgettext_options,
        "--keyword=fixed:1,1t",
        "--keyword=fixed:1,2c,2t",
        "--keyword=counted:1,2",
    ]
