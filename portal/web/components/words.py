"""Formatting of numbers, durations and estimates on pages (design, section 8)."""

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

from django.utils import formats, timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import get_language, npgettext, pgettext
from django.utils.translation import gettext as _

from portal.i18n import is_english, translated
from tenants.clock import estimated_now
from tenants.viewers import ANOTHER_TENANT
from tessera.ranges import DAY, HOUR, MINUTE, StartRange, start_range, units

NO_BREAK: Final = "\u00a0"
DASH: Final = "–"


def count(value: float) -> str:
    """Format an integer with the grouping of the locale: ``1,180``."""
    return _number(get_language(), round(value), 0)


def decimal(value: float, places: int) -> str:
    """Format a number with fixed decimals, and the grouping of the locale."""
    # number_format truncates instead of rounding; zero has no sign.
    return _number(get_language(), round(value, places) + 0.0, places)


@lru_cache(maxsize=8192)
def _number(_language: str | None, value: float, places: int) -> str:
    return str(formats.number_format(value, decimal_pos=places, force_grouping=True))


def amount(value: float) -> str:
    """Format a rate: an integer from 100 on, three digits below (``1,180``, ``42.5``)."""
    size = abs(value)
    places = 0 if size >= 100 or value == int(value) else (1 if size >= 10 else 2)
    return decimal(value, places)


def percent(share: float) -> str:
    """Format a share in [0, 1] as percent with a no-break space; below 1 % with one decimal."""
    hundredths = share * 100
    places = 1 if 0.05 <= hundredths < 1 else 0
    return f"{decimal(_half_up(hundredths, places), places)}{NO_BREAK}%"


def gpu_hours(hours: float) -> str:
    """Format GPU hours: one decimal below 100, then an integer."""
    return decimal(hours, 1) if hours < 99.95 else count(hours)


def file_size(size: float) -> str:
    """Format decimal bytes: ``1.2 GB``."""
    if size < 1000:
        return f"{count(size)}{NO_BREAK}B"
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 999.5 or unit == "TB":
            break
    return f"{decimal(size, 1) if size < 99.95 else count(size)}{NO_BREAK}{unit}"


def plural(number: int, one: str, many: str) -> str:
    """Format a count as ``1 device`` or ``7 devices``, by gettext."""
    return f"{count(number)} {npgettext('count', one, many, number)}"


def tenant(name: str) -> str:
    """Return the name of a tenant, or a placeholder for one that the reader may not see."""
    return str(translated(name)) if name == ANOTHER_TENANT else name


def devices(number: int, types: Sequence[str] = ()) -> str:
    """Format devices as ``8 × A100``; *or* joins several types; no type gives ``8 devices``."""
    if not types:
        return plural(number, "device", "devices")
    return f"{count(number)} × {' or '.join(types)}"


def span(low: int, high: int) -> str:
    """Format a range of counts: ``4 – 16``, or one number if both are equal."""
    return count(low) if low == high else f"{count(low)} {DASH} {count(high)}"


def duration(seconds: float) -> str:
    """Format a duration in at most two units: ``5 h 13 min``; ``0.42 s``; ``4.20 ms``."""
    return duration_in(get_language(), seconds)


def duration_in(language: str | None, seconds: float) -> str:
    """Format many durations, for callers that know the language of the page."""
    if 0 < seconds < 0.00995:
        return step_time(seconds)
    if 0 < seconds < 0.995:
        return f"{decimal(seconds, 2)}{NO_BREAK}{_unit('s')}"
    return _duration(language, max(0, round(seconds)))


@lru_cache(maxsize=8192)
def _duration(_language: str | None, whole: int) -> str:
    return " ".join(f"{number}{NO_BREAK}{_unit(unit)}" for number, unit in units(whole))


def step_time(seconds: float) -> str:
    """Format a step or a message with about three digits: ``94 µs``, ``713 ms``, ``1.42 s``."""
    if 0 < seconds < 0.0009995:
        return f"{amount(1e6 * seconds)}{NO_BREAK}{_unit('µs')}"
    if seconds < 0.9995:
        return f"{amount(1000 * seconds)}{NO_BREAK}{_unit('ms')}"
    return f"{amount(seconds)}{NO_BREAK}{_unit('s')}"


def running_time(start: datetime | None, end: datetime | None = None) -> SafeString | str:
    """Format the time from ``start`` to ``end``; without an end, a script updates it."""
    if start is None:
        return DASH
    until = end or estimated_now()
    text = duration((until - start).total_seconds())
    if end is not None:
        return text
    return format_html(
        '<time datetime="{}" title="{}" data-since>{}</time>',
        start.isoformat(),
        _("since %(moment)s") % {"moment": utc(start)},
        text,
    )


def ago(moment: datetime, now: datetime) -> str:
    """Format relative times below 24 h (``12 s ago``, ``in 4 min``), then ``14 Nov 09:31``."""
    seconds = (now - moment).total_seconds()
    if abs(seconds) >= DAY:
        return clock(moment)
    if -1 < seconds < 1:
        return _("now")
    length = _one_unit(abs(seconds))
    shape = _("%(length)s ago") if seconds > 0 else _("in %(length)s")
    return shape % {"length": length}


def local(moment: datetime) -> datetime:
    """Convert a time to the time zone of the page."""
    return moment.astimezone(timezone.get_current_timezone())


def clock(moment: datetime) -> str:
    """Format a time as ``14 Nov 09:31`` in the zone of the page; the title adds year and UTC."""
    return _clock(get_language(), timezone.get_current_timezone(), moment)


@lru_cache(maxsize=4096)
def _clock(_language: str | None, zone: tzinfo, moment: datetime) -> str:
    moment = moment.astimezone(zone)
    return f"{_date(moment)} {moment:%H:%M}"


def day(moment: datetime) -> str:
    """Format a date as ``14 Nov`` in the zone of the page."""
    return _date(local(moment))


def date_span(since: date, until: date) -> str:
    """Format days of UTC, both included: ``21 Nov – 27 Nov``, or one day."""
    return _date(since) if since == until else f"{_date(since)} {DASH} {_date(until)}"


def on_chart(moment: datetime) -> str:
    """Format a time for charts: in the zone of the page, and without an offset."""
    return local(moment).replace(tzinfo=None).isoformat()


def first_tick(since: datetime, step: int) -> datetime:
    """Return the first time from ``since`` on that is a multiple of ``step`` seconds."""
    offset = local(since).utcoffset() or timedelta()
    seconds = since.timestamp() + offset.total_seconds()
    return local(
        datetime.fromtimestamp(math.ceil(seconds / step) * step - offset.total_seconds(), UTC)
    )


def utc(moment: datetime) -> str:
    """Format the full time, as the title of a ``<time>``: ``2025-11-14 09:31:12 UTC``."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def estimate(p10: float, p90: float, now: datetime, *, soonest: float = 0.0) -> str:
    """Format a range, rounded outwards, as ``in 15 – 35 min``; over 12 h as times of the day.

    Args:
        p10: seconds from now that nine in ten exceed.
        p90: seconds from now that one in ten exceeds; infinite beyond the horizon.
        now: reference time of both.
        soonest: seconds from now until a gate opens; lower bound of the range.
    """
    found = start_range(p10, p90, soonest=soonest)
    if found is None:
        return _("now")
    if found.is_point:
        return _at_a_point(found, now)
    if found.high is None:
        return _or_later(found, now)
    if found.by_clock:
        return _by_the_clock(found.low, found.high, now)
    words = (duration(found.low), duration(found.high))
    first = words[0].split(NO_BREAK)[0] if found.has_one_unit else words[0]
    return _("in %(first)s – %(last)s") % {"first": first, "last": words[1]}


def _half_up(value: float, places: int) -> float:
    scale = 10.0**places
    return math.floor(value * scale + 0.5) / scale


def _unit(unit: str) -> str:
    """Return a unit of time in the language of the page."""
    if is_english():
        return unit
    units = {
        "µs": pgettext("unit of time", "µs"),
        "ms": pgettext("unit of time", "ms"),
        "s": pgettext("unit of time", "s"),
        "min": pgettext("unit of time", "min"),
        "h": pgettext("unit of time", "h"),
        "d": pgettext("unit of time", "d"),
    }
    return units[unit]


def _date(moment: date) -> str:
    """Format day and month, short."""
    if is_english():
        return f"{moment.day} {moment:%b}"
    return str(formats.date_format(moment, "MONTH_DAY_FORMAT"))


def _one_unit(seconds: float) -> str:
    if seconds < MINUTE:
        return f"{int(seconds)}{NO_BREAK}{_unit('s')}"
    if seconds < HOUR:
        return f"{int(seconds // MINUTE)}{NO_BREAK}{_unit('min')}"
    return duration(seconds // MINUTE * MINUTE)


def _at_a_point(found: StartRange, now: datetime) -> str:
    if not found.by_clock:
        return _("in %(length)s") % {"length": duration(found.low)}
    at = local(now + timedelta(seconds=found.low))
    day, time = _day(at, now), f"{at:%H:%M}"
    if day == _("today"):
        return _("at %(time)s") % {"time": time}
    return f"{day} {time}".replace(" ", NO_BREAK)


def _or_later(found: StartRange, now: datetime) -> str:
    if not found.low:
        return _("at any time")
    if not found.by_clock:
        return _("in %(time)s or later") % {"time": duration(found.low)}
    at = local(now + timedelta(seconds=found.low))
    time = f"{_day(at, now)} {at:%H:%M}".replace(" ", NO_BREAK)
    return _("%(time)s or later") % {"time": time}


def _by_the_clock(soonest: int, latest: int, now: datetime) -> str:
    low, high = (local(now + timedelta(seconds=end)) for end in (soonest, latest))
    start = f"{_day(low, now)} {low:%H:%M}"
    end = f"{high:%H:%M}" if low.date() == high.date() else f"{_day(high, now)} {high:%H:%M}"
    # A line may break between the two, never within one.
    return f"{start.replace(' ', NO_BREAK)} {DASH} {end.replace(' ', NO_BREAK)}"


def _day(moment: datetime, now: datetime) -> str:
    ahead = (moment.date() - local(now).date()).days
    return {0: _("today"), 1: _("tomorrow")}.get(ahead) or _date(moment)
