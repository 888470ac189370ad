"""Sign-in by name and password: counted before the password check, and recorded."""

import ipaddress
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Greatest
from django.utils.crypto import salted_hmac

from tenants.audit import Actor, record
from tenants.errors import DomainError
from tenants.keyring import digest_key
from tenants.messages import sentence
from tenants.models import KnownSource, SignInTally, User
from tenants.throttling import (
    NAME_HALF_LIFE,
    PAIR_HALF_LIFE,
    SITE_HALF_LIFE,
    SOURCE_HALF_LIFE,
    SOURCES_OF_SITE,
    FailureTally,
    seconds_to_wait,
)

KNOWN_FOR: Final = timedelta(days=400)
MOST_KNOWN: Final = 50
"""Maximum number of known sources of a person; the least recently used one is deleted first."""
KEEP_TALLIES: Final = timedelta(days=2)
MOST_RECORDED: Final = 100
"""Failed sign-ins in the audit at a time; the count halves every hour."""
MOST_RECORDED_OF_PAIR: Final = 3
_RECORD_HALF_LIFE: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInSource:
    """The source of an attempt.

    Attributes:
        address: address of the caller, as text; empty if unknown.
        device: content of the caller's signed cookie; empty without one.
    """

    address: str
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInAttempt:
    """An attempt that was counted as failed; ``succeeded`` takes that back.

    Attributes:
        username: the name as typed.
        source: source of the attempt.
        keys: tallies that have counted it, with those of the pair first.
        failures: number of failures of the pair, including this one.
        at: time of the attempt.
    """

    username: str
    source: SignInSource
    keys: tuple[str, ...]
    failures: float
    at: datetime


class TooManyFailuresError(DomainError):
    """Too many sign-ins have failed; the password was not checked."""

    code = "throttled"
    status = 429
    title = "Too many failed sign-ins"

    @classmethod
    def after(cls, seconds: float) -> "TooManyFailuresError":
        """Build the error with the time to wait."""
        wait = max(1, math.ceil(seconds))
        error = cls(
            sentence("sign-in-delayed"),
            remedy=sentence("retry-in", n=wait),
        )
        error.retry_after = wait
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """The tallies that decide whether an attempt is delayed.

    Attributes:
        pair: key of the tally of the name with the source; ``source``, ``name`` and ``site`` too.
        sources_of_site: failures of the site that count as one of the source.
        is_known: the source has signed in with the name before.
    """

    pair: str
    source: str
    name: str
    site: str
    sources_of_site: int
    is_known: bool

    @property
    def half_lives(self) -> Mapping[str, timedelta]:
        """Return half-lives of the tallies that count the attempt, by key, with the pair first."""
        of_pair = {self.pair: PAIR_HALF_LIFE}
        if self.is_known:
            return of_pair
        return of_pair | {
            self.source: SOURCE_HALF_LIFE,
            self.name: NAME_HALF_LIFE,
            self.site: SITE_HALF_LIFE,
        }

    def seconds_to_wait(self, tallies: Mapping[str, FailureTally], now: datetime) -> float:
        """Return the seconds until the attempt is checked, by these tallies."""
        return seconds_to_wait(
            pair=tallies.get(self.pair, FailureTally()),
            source=tallies.get(self.source, FailureTally()),
            name=tallies.get(self.name, FailureTally()),
            site=tallies.get(self.site, FailureTally()),
            sources_of_site=self.sources_of_site,
            is_known=self.is_known,
            now=now,
        )


def begin_attempt(*, username: str, source: SignInSource, now: datetime) -> SignInAttempt:
    """Count an attempt as failed before the password check, so that every failure is counted.

    A delayed attempt writes nothing, so that an attack does not block SQLite's writer.

    Raises:
        TooManyFailuresError: the attempt has to wait; it is not counted.
    """
    counted = _counted(username, source)
    _refuse_early(counted, _tallies(counted.half_lives), now)
    with transaction.atomic():
        tallies = _locked(counted.half_lives)
        _refuse_early(counted, tallies, now)
        for key, half_life in counted.half_lives.items():
            tallies[key] = tallies[key].plus_one(now, half_life)
            _store(key, tallies[key])
    return SignInAttempt(
        username=username,
        source=source,
        keys=tuple(counted.half_lives),
        failures=tallies[counted.pair].failures,
        at=now,
    )


@transaction.atomic
def attempt_succeeded(*, attempt: SignInAttempt, user: User, via: str) -> None:
    """Undo the count, store the source, and record the sign-in.

    Args:
        attempt: from ``begin_attempt``.
        user: the user.
        via: ``page`` or ``api``.
    """
    pair, *others = attempt.keys
    # Every sign-in locks the tally of the name, so that sources are stored one after another.
    _locked({*attempt.keys, _name_key(attempt.username)})
    SignInTally.objects.filter(key=pair).update(failures=0.0)
    SignInTally.objects.filter(key__in=others).update(failures=Greatest(F("failures") - 1.0, 0.0))
    remember_source(user=user, source=attempt.source, now=attempt.at)
    record(
        actor=Actor(user_id=user.pk, name=user.username),
        action="user.sign_in",
        obj=user,
        after={"address": attempt.source.address, "via": via},
    )


@transaction.atomic
def attempt_failed(*, attempt: SignInAttempt, via: str) -> None:
    """Record a failed sign-in; limited, so that failures do not flood the audit."""
    if attempt.failures > MOST_RECORDED_OF_PAIR + 0.5:
        return
    key = _key("audit")
    recorded = _locked((key,))[key].plus_one(attempt.at, _RECORD_HALF_LIFE)
    if recorded.failures > MOST_RECORDED + 1:
        return
    _store(key, recorded)
    is_last = recorded.failures > MOST_RECORDED
    user = User.objects.filter(username__iexact=attempt.username).first()
    record(
        actor=Actor.system("sign-in"),
        action="user.sign_in_failed",
        obj=user,
        object_type="user",
        # A name that does not exist may be a password in the wrong field.
        object_name=user.username if user is not None else "unknown name",
        after={"address": attempt.source.address, "via": via},
        message=sentence("sign-ins-not-recorded") if is_last else "",
    )


def signed_out(*, user: User, address: str) -> None:
    """Record a sign-out."""
    record(
        actor=Actor(user_id=user.pk, name=user.username),
        action="user.sign_out",
        obj=user,
        after={"address": address},
    )


def remember_source(*, user: User, source: SignInSource, now: datetime) -> None:
    """Store this address and device as known for the person."""
    for key in filter(None, (_device_key(source), _address_key(source))):
        KnownSource.objects.update_or_create(user=user, key=key, defaults={"last_at": now})
    rows = KnownSource.objects.filter(user=user).order_by("-last_at", "-pk")
    KnownSource.objects.filter(
        pk__in=list(rows.values_list("pk", flat=True)[MOST_KNOWN:])
    ).delete()


def forget_attempts(*, now: datetime) -> int:
    """Delete decayed tallies, and sources that were not used for a long time."""
    # Rows of a running sign-in are in use; others are locked in the order of their keys.
    old_tallies = SignInTally.objects.select_for_update(skip_locked=True).filter(
        Q(at__lt=now - KEEP_TALLIES) | Q(at=None)
    )
    with transaction.atomic():
        keys = list(old_tallies.order_by("key").values_list("pk", flat=True))
        gone, _ = SignInTally.objects.filter(pk__in=keys).delete()
    old, _ = KnownSource.objects.filter(last_at__lt=now - KNOWN_FOR).delete()
    return gone + old


def _known(username: str, keys: tuple[str, ...]) -> frozenset[str]:
    rows = KnownSource.objects.filter(
        user__username__iexact=username, key__in=[key for key in keys if key]
    )
    return frozenset(rows.values_list("key", flat=True))


def _counted(username: str, source: SignInSource) -> _Counted:
    name = username.casefold()
    device, address = _device_key(source), _address_key(source)
    known = _known(username, (device, address))
    site, sources_of_site = _site_of(source.address)
    return _Counted(
        pair=_key("pair", name, device if device in known else address),
        source=address,
        name=_name_key(username),
        site=_key("site", name, site),
        sources_of_site=sources_of_site,
        is_known=bool(known),
    )


def _refuse_early(counted: _Counted, tallies: Mapping[str, FailureTally], now: datetime) -> None:
    wait = counted.seconds_to_wait(tallies, now)
    if wait > 0:
        raise TooManyFailuresError.after(wait)


def _tallies(keys: Iterable[str]) -> dict[str, FailureTally]:
    rows = SignInTally.objects.filter(key__in=list(keys))
    return {row.key: FailureTally(failures=row.failures, at=row.at) for row in rows}


def _locked(keys: Iterable[str]) -> dict[str, FailureTally]:
    """Return the tallies of ``keys``, created where missing, locked until the transaction ends.

    One statement creates and locks them in the order of their keys: no other transaction can
    delete a row in between, and no deadlock can occur.
    """
    SignInTally.objects.bulk_create(
        [SignInTally(key=key) for key in sorted(set(keys))],
        update_conflicts=True,
        unique_fields=["key"],
        update_fields=["key"],
    )
    return _tallies(keys)


def _store(key: str, tally: FailureTally) -> None:
    SignInTally.objects.filter(key=key).update(failures=tally.failures, at=tally.at)


def _device_key(source: SignInSource) -> str:
    return _key("device", source.device) if source.device else ""


def _address_key(source: SignInSource) -> str:
    return _key("address", _network_of(source.address))


def _name_key(username: str) -> str:
    return _key("name", username.casefold())


def _site_of(address: str) -> tuple[str, int]:
    """Return the address (the /48 of IPv6), and its failures that count as one of a source."""
    network = _network_of(address)
    if ":" not in network:
        return network, 1
    site = ipaddress.ip_network(network).supernet(new_prefix=48)
    return str(site), SOURCES_OF_SITE


def _network_of(address: str) -> str:
    """Return the network of an address; of IPv6 the /64, which is the least a subscriber has."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    plain = getattr(found, "ipv4_mapped", None) or found
    if plain.version == 4:
        return str(plain)
    return str(ipaddress.ip_network((plain, 64), strict=False))


def _key(kind: str, *parts: str) -> str:
    """Return a keyed digest, which is useless without the installation's key."""
    text = "\x00".join((kind, *parts))
    return salted_hmac(
        "tenants.sign_in", text, secret=digest_key(), algorithm="sha256"
    ).hexdigest()
