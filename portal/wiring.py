"""Connects what the lower rooms announce to the broker: the only place that knows both."""

import logging
import math
import time
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

import redis
from django.conf import settings
from kombu.exceptions import KombuError

from portal.celery import ROUNDS_QUEUE
from portal.live import publishing
from portal.pace import Pace, rest_left
from scheduling import signals

logger = logging.getLogger(__name__)

ROUND_WANTED_KEY: Final = "tessera:round-wanted"
ROUND_WANTED_SECONDS: Final = 2
ROUNDS_BEGUN_KEY: Final = "tessera:rounds-begun"
NEW_JOBS: Final = "submit"
RESTING: Final = b"rest"
WAKE_KEY_SECONDS: Final = 3600
ESTIMATES_KEY: Final = "tessera:estimates"
ESTIMATES_SECONDS: Final = 15
QUIET_ESTIMATES_KEY: Final = "tessera:estimates-quiet"
QUIET_ESTIMATES_SECONDS: Final = 30
NEW_WAITS_WANTED_KEY: Final = "tessera:new-waits-wanted"
NEW_WAITS_GOING_KEY: Final = "tessera:new-waits-going"
NEW_WAITS_REST_KEY: Final = "tessera:new-waits-rest"
NEW_WAITS_SECONDS: Final = 60
"""After so long whoever was to work for new waits has died."""

AWAY_SECONDS: Final = 1.0

_away_until: Final = [float("-inf")]
_complained: dict[str, int] = {}
_pace: Final = Pace()


def connect() -> None:
    """Receive the signals of the scheduling room; safe to call twice."""
    signals.round_wanted.connect(enqueue_round, dispatch_uid="portal.enqueue_round")
    signals.round_due.connect(enqueue_round_at, dispatch_uid="portal.enqueue_round_at")
    signals.what_if_asked.connect(enqueue_what_if, dispatch_uid="portal.enqueue_what_if")
    signals.round_committed.connect(enqueue_shadows, dispatch_uid="portal.enqueue_shadows")
    signals.round_committed.connect(enqueue_estimates, dispatch_uid="portal.enqueue_estimates")
    signals.round_committed.connect(answer_new_waits, dispatch_uid="portal.answer_new_waits")
    signals.new_waits_begin.connect(begin_new_waits, dispatch_uid="portal.begin_new_waits")
    signals.new_waits_end.connect(end_new_waits, dispatch_uid="portal.end_new_waits")
    signals.estimates_rest.connect(rest_from_estimates, dispatch_uid="portal.rest")
    if has_broker():
        publishing.connect()
    signals.round_committed.connect(let_rounds_rest, dispatch_uid="portal.let_rounds_rest")
    signals.round_taken.connect(has_been_overtaken, dispatch_uid="portal.has_been_overtaken")
    signals.round_begins.connect(feed_sweeps, dispatch_uid="portal.feed_sweeps")
    signals.round_begins.connect(forget_wanted_round, dispatch_uid="portal.forget_wanted_round")


def has_broker() -> bool:
    """Whether messages leave this process at all (tests run without a broker)."""
    return urlsplit(settings.TESSERA.redis_url).scheme != "memory"


@cache
def redis_client() -> "redis.Redis[bytes]":
    """This process's client; it fails fast, since no message carries anything that matters."""
    return redis.Redis.from_url(
        settings.TESSERA.redis_url, socket_timeout=2.0, socket_connect_timeout=2.0
    )


def broker_answers() -> bool:
    """Whether the broker can be reached now; True where messages leave no process."""
    if not has_broker():
        return True
    try:
        _client().ping()
    except (redis.RedisError, OSError) as error:
        _complain("the broker does not answer", error)
        return False
    return True


class _AwayError(redis.ConnectionError):
    """The broker did not answer a moment ago, and was not asked again."""


def _client() -> "redis.Redis[bytes]":
    """This process's client, unless the broker did not answer a moment ago.

    Raises:
        _AwayError: it did not; nobody waits for it again before a second has passed.
    """
    if time.monotonic() < _away_until[0]:
        raise _AwayError("the broker did not answer a moment ago")
    return redis_client()


def enqueue_round(*, cause: str, **_: Any) -> None:
    """Put one round on the queue unless one waits there already.

    The key goes away when a round begins to read; its two seconds are only for a worker that died
    in between. A lost message costs time until the next tick and nothing else. Rounds for which
    only new jobs ask rest in between (``portal.pace``); whatever else happens waits for no rest.
    """
    if not has_broker():
        return
    from scheduling.tasks import run_round  # noqa: PLC0415 tasks need the loaded applications

    try:
        client = _client()
        rest = _claim_round(client, cause)
        if rest is not None:
            wanted = {"cause": cause, "after": _rounds_begun(client)}
            run_round.apply_async(kwargs=wanted, queue=ROUNDS_QUEUE, retry=False, countdown=rest)
    except (redis.RedisError, KombuError, OSError) as error:
        _complain("no round could be asked for; the next tick will do it", error)


def _claim_round(client: "redis.Redis[bytes]", cause: str) -> float | None:
    """Seconds until the round that this cause shall ask for; None: one is asked for already.

    One command claims a round and says whether it rests: who comes between two would take a round
    that rests for one that comes at once, and wait with it. Of two that cut a rest short at the
    same instant both ask, and the later of their rounds is overtaken.
    """
    rest = rest_left(client) if cause == NEW_JOBS else 0.0
    word, seconds = (RESTING, math.ceil(rest)) if rest else (cause, 0)
    if client.set(ROUND_WANTED_KEY, word, nx=True, ex=ROUND_WANTED_SECONDS + seconds):
        return rest
    if cause == NEW_JOBS or client.get(ROUND_WANTED_KEY) != RESTING:
        return None
    client.set(ROUND_WANTED_KEY, cause, ex=ROUND_WANTED_SECONDS)
    return 0.0


def enqueue_shadows(*, number: int, stored: bool, **_: Any) -> None:
    """Let shadow policies decide a stored round, apart from the rounds themselves."""
    if not stored or not has_broker():
        return
    from scheduling.selectors.shadows import any_shadows  # noqa: PLC0415 models, as below
    from scheduling.tasks import decide_shadows  # noqa: PLC0415 tasks need the loaded applications

    if not any_shadows():
        return
    try:
        _client().ping()
        decide_shadows.apply_async(kwargs={"number": number}, retry=False)
    except (redis.RedisError, KombuError, OSError) as error:
        _complain("no shadow decides this round", error)


def enqueue_estimates(*, changed: bool, **_: Any) -> None:
    """Let starts be estimated after a round, apart from the rounds and not too often."""
    if not has_broker():
        return
    from scheduling.tasks import estimate_starts  # noqa: PLC0415 tasks need loaded applications

    key, seconds = (
        (ESTIMATES_KEY, ESTIMATES_SECONDS)
        if changed
        else (QUIET_ESTIMATES_KEY, QUIET_ESTIMATES_SECONDS)
    )
    try:
        if _client().set(key, "1", nx=True, ex=seconds):
            estimate_starts.apply_async(retry=False, expires=ESTIMATES_SECONDS)
    except (redis.RedisError, KombuError, OSError) as error:
        _complain("no starts are estimated after this round", error)


def rest_from_estimates(*, seconds: float, **_: Any) -> None:
    """Ask for no estimates for some time, since they are being made or took long."""
    if not has_broker():
        return
    try:
        for key, least in (
            (ESTIMATES_KEY, ESTIMATES_SECONDS),
            (QUIET_ESTIMATES_KEY, QUIET_ESTIMATES_SECONDS),
        ):
            _client().set(key, "1", ex=max(least, round(seconds)))
    except redis.RedisError as error:
        _complain("estimates may be asked for while others are made", error)


def answer_new_waits(*, new_waits: bool, **_: Any) -> None:
    """Let it be worked out what jobs want to know that a round has just made wait."""
    if new_waits and has_broker():
        _enqueue_new_waits()


def _enqueue_new_waits() -> None:
    """Ask for one such task, once the last one has been rested from.

    Nobody asks while one is at work: it looks at its end whether others have come.
    """
    from scheduling.tasks import estimate_new_waits  # noqa: PLC0415 tasks need loaded applications

    try:
        client = _client()
        rest = max(client.pttl(NEW_WAITS_REST_KEY), 0) / 1000.0
        until = math.ceil(rest) + NEW_WAITS_SECONDS
        if not client.exists(NEW_WAITS_GOING_KEY) and client.set(
            NEW_WAITS_WANTED_KEY, "1", nx=True, ex=until
        ):
            estimate_new_waits.apply_async(retry=False, countdown=rest, expires=until)
    except (redis.RedisError, KombuError, OSError) as error:
        _complain("new waits are answered when all estimates are renewed", error)


def begin_new_waits(**_: Any) -> None:
    """One such task is at work from now on."""
    if not has_broker():
        return
    try:
        _client().set(NEW_WAITS_GOING_KEY, "1", ex=NEW_WAITS_SECONDS)
        _client().delete(NEW_WAITS_WANTED_KEY)
    except redis.RedisError as error:
        _complain("new waits may be answered by two at once", error)


def end_new_waits(*, seconds: float, others: Callable[[], bool], **_: Any) -> None:
    """It has come to its end: a rest follows, and after it another one if jobs have come.

    Rounds ask again before it is looked for others, or those of a round between would be missed.
    """
    if not has_broker():
        return
    try:
        _client().set(NEW_WAITS_REST_KEY, "1", px=max(1, round(1000.0 * seconds)))
        _client().delete(NEW_WAITS_GOING_KEY)
    except redis.RedisError as error:
        _complain("new waits are answered without a rest", error)
    if others():
        _enqueue_new_waits()


def enqueue_what_if(*, pk: int, **_: Any) -> None:
    """Let a question about past days be answered by a worker."""
    if not has_broker():
        return
    from scheduling.tasks import answer_what_if  # noqa: PLC0415 tasks need the loaded applications

    try:
        _client().ping()
        answer_what_if.apply_async(kwargs={"pk": pk}, retry=False)
    except (redis.RedisError, KombuError, OSError) as error:
        _complain("a question of what would have been waits for its next asking", error)


def feed_sweeps(**_: Any) -> None:
    """Release jobs of sweeps whose turn it is, so that the round that begins sees them."""
    from scheduling.services import sweeps  # noqa: PLC0415 models need the loaded applications

    sweeps.feed_sweeps()


def enqueue_round_at(*, at: datetime, **_: Any) -> None:
    """Put a round on the queue for the instant that a policy wants; a lost one only costs time."""
    if not has_broker():
        return
    from scheduling.tasks import run_round  # noqa: PLC0415 tasks need the loaded applications

    key = f"{ROUND_WANTED_KEY}:{int(at.timestamp())}"
    try:
        if _client().set(key, "wake", nx=True, ex=WAKE_KEY_SECONDS):
            run_round.apply_async(
                kwargs={"cause": "wake"}, queue=ROUNDS_QUEUE, eta=at, retry=False
            )
    except (redis.RedisError, KombuError, OSError) as error:
        _complain("no round could be asked for; the next tick will do it", error)


def has_been_overtaken(*, after: int, **_: Any) -> bool:
    """Whether a round has begun since one was asked for; that one has seen all that it should.

    Without it, rounds that rest and rounds that do not would pile up behind each other.
    """
    if not has_broker():
        return False
    try:
        return _rounds_begun(_client()) > after
    except (redis.RedisError, OSError) as error:
        _complain("a round begins whether it is still needed or not", error)
        return False


def _rounds_begun(client: "redis.Redis[bytes]") -> int:
    return int(client.get(ROUNDS_BEGUN_KEY) or 0)


def forget_wanted_round(**_: Any) -> None:
    """From now on a change needs another round."""
    if not has_broker():
        return
    try:
        # Counted first: whoever finds the key relies on a round that is not overtaken by this one.
        _client().incr(ROUNDS_BEGUN_KEY)
        _client().delete(ROUND_WANTED_KEY)
        _pace.begin(_client())
    except (redis.RedisError, OSError) as error:
        _complain("the key of the wanted round stays until it expires", error)


def let_rounds_rest(**_: Any) -> None:
    """The round of this process has committed; new jobs wait before they ask for another one."""
    if not has_broker():
        return
    try:
        _pace.end(_client())
    except (redis.RedisError, OSError) as error:
        _complain("rounds follow one another without a rest", error)


def _complain(words: str, error: Exception) -> None:
    """Warn once a minute: a broker that is away would otherwise fill the log."""
    if not isinstance(error, _AwayError):
        _away_until[0] = time.monotonic() + AWAY_SECONDS
    minute = int(time.monotonic() // 60)
    if _complained.get(words) != minute:
        _complained[words] = minute
        logger.warning("%s (%s)", words, error)
