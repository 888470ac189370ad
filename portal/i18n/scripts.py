"""Texts for the scripts of the pages (``translate`` in ``static/js/dom.js``)."""

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
    _("Running jobs continue; no new jobs start."),
    _("No scheduling round for {time}."),
    _("Continue"),
    _("Cancel"),
    _("At"),
    _("No data yet."),
    _("The chart is not available. Use the table."),
    _("Chart"),
    _("Table"),
    _("Step"),
    _("Time"),
    _("Epoch"),
    _("Hours"),
    _("Device-hours"),
    _("smoothed"),
    _("{number} events"),
    _("Not all values are positive."),
    _("Double-click shows this line alone"),
    _("{number} or more devices"),
    _("Metrics could not be loaded."),
    _("Loading the log …"),
    _("Log of {role} {rank}"),
    _("No output yet."),
    _("The log is not available. Retrying."),
    _("{bytes} B expired"),
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
    _("It no longer exists."),
    _("Another person changed it meanwhile. Reload the page."),
    _("Too many requests. Try again later."),
    _("The server returned {status}. No changes were made."),
    _("The server does not respond. No changes were made."),
    _("Light or dark"),
    _("Text"),
    _("{what} copied"),
    _("Use {value}"),
    _("{name}: {size} B; the limit is {most} B."),
    _("Exclude data and environments; fetch them in the job."),
    _("{number} error"),
    _("{number} errors"),
    _("Pages and actions"),
    _("Jobs"),
    _("Sweeps"),
    _("Virtual clusters"),
    _("Nodes"),
    _("People"),
    _("Documentation"),
    _("{number} result"),
    _("{number} results"),
    _("The search is not available."),
    _("Open"),
    _("Open log"),
    _("Events"),
    _("Edit and resubmit"),
    _("Stop job …"),
    _("Actions on {name}"),
)


def script_words() -> dict[str, str]:
    """Return the translations of the script texts by their English text; empty for English."""
    if is_english() or get_language() is None:
        return {}
    units = {
        "s": pgettext("unit of time", "s"),
        "min": pgettext("unit of time", "min"),
        "h": pgettext("unit of time", "h"),
        "d": pgettext("unit of time", "d"),
    }
    return {**{word: gettext(word) for word in WORDS}, **units}
