"""The few words that scripts of the pages say by themselves (``say`` in ``static/js/dom.js``)."""

from typing import Final

from django.utils.translation import get_language, gettext, pgettext
from django.utils.translation import gettext_noop as _

from portal.i18n.language import is_english

WORDS: Final = (
    _("now"),
    _("{time} ago"),
    _("in {time}"),
    _("Live"),
    _("Paused"),
    _("Connecting"),
    _("Offline"),
    _("Polled {seconds} s ago"),
    _("Retry in {seconds} s"),
    _("Stale {seconds} s"),
    _("Updates arrive as they happen"),
    _("{number} policies"),
    _("Running jobs go on; no new job starts."),
    _("No round for {time}."),
    _("Continue"),
    _("Cancel"),
    _("At"),
    _("There is nothing to draw yet."),
    _("The chart cannot be drawn; its table can."),
    _("Chart"),
    _("Table"),
    _("Loading the log …"),
    _("Log of {role} {rank}"),
    _("Nothing was written yet."),
    _("The log cannot be read now; what is shown stays. Trying again."),
    _("{bytes} bytes are not kept any more"),
    _("no gaps"),
    _("fetching the rest"),
    _("Lines {first} – {last}, {end} of {size} bytes, {whole}"),
    _("Bytes {start} – {end} of {size}, {whole}"),
    _("{number} new line"),
    _("{number} new lines"),
    _("Follow"),
    _("Following"),
    _("Next error ({number})"),
    _("Your role does not allow this."),
    _("It is no longer there."),
    _("Somebody changed it meanwhile. Reload the page."),
    _("Too many requests; wait a little."),
    _("The server answered {status}; nothing was changed."),
    _("The server does not answer; nothing was changed."),
    _("Light or dark"),
    _("Text"),
    _("{what} copied"),
    _("Use {value}"),
    _("{name} has {size} bytes; {most} are taken."),
    _("Leave data and environments out; fetch them in the job."),
    _("{number} error"),
    _("{number} errors"),
)


def script_words() -> dict[str, str]:
    """English to the language of the page; empty where that is English."""
    if is_english() or get_language() is None:
        return {}
    units = {
        "s": pgettext("unit of time", "s"),
        "min": pgettext("unit of time", "min"),
        "h": pgettext("unit of time", "h"),
        "d": pgettext("unit of time", "d"),
    }
    return {**{word: gettext(word) for word in WORDS}, **units}
