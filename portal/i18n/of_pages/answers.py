"""Words of the portal's own answers, and words of states and kinds that pages look up."""

from typing import Final

from django.utils.translation import gettext_noop as _

ANSWER_SENTENCES: Final = (
    _("a list"),
    _("a text"),
    _("an object"),
    _("Did you mean %(meant)s?"),
    _("has %(size)s bytes, more than %(most_bytes)s."),
    _("is empty."),
    _("is missing."),
    _("is not a duration."),
    _("is not an address."),
    _("is not an amount of memory."),
    _("names no host."),
    _("Put the key in quotes."),
    _("Remove it."),
    _("Write one of %(names)s."),
    _("Write a whole number from %(lowest)s to %(highest)s."),
)
