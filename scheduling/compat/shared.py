"""Parts that several formats share: shell prelude, images, sizes, variables, SSH hosts."""

import re
import shlex
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from scheduling.compat.messages import phrase
from scheduling.compat.reading import ParseReport, Section
from scheduling.core.jobspec.errors import DocumentPlace, RefusalError, kind_of
from scheduling.core.jobspec.scalars import MIB, TIB
from scheduling.core.jump_hosts import jump_host_text, parse_jump_host
from tessera.storage import STORAGE_NAME, mount_problem

# Nodes run commands with /bin/sh; the other systems run them with bash.
BASH_PRELUDE: Final = (
    '[ -n "${BASH_VERSION-}" ] || [ ! -f "$0" ] || ! command -v bash >/dev/null || '
    'exec bash "$0"\n'
)


def change_directory(path: str) -> str:
    """Return a shell line that changes to ``path``, or ends the job on failure."""
    return f"cd -- {shlex.quote(path)} || exit 1\n"


def read_secrets(names: list[str]) -> str:
    """Return shell lines that export each secret as a variable of the same name."""
    return "".join(
        f'{name}="$(cat "$TESSERA_JOB_SECRETS_DIR/{name}")" && export {name} || exit 1\n'
        for name in names
    )


_SCHEME: Final = re.compile(r"(?:docker|dockerd|podman|enroot)://|docker:(?!//)")


def read_image(text: str, place: DocumentPlace, report: ParseReport) -> str | None:
    """Return an image name for container engines; None for a file or another kind of image.

    Args:
        text: ``docker://``, ``docker:``, Pyxis' ``registry#name:tag``, or a plain name.
        place: place of the text in the document.
        report: gets parts without a counterpart.
    """
    name = _SCHEME.sub("", text.strip(), count=1).replace("#", "/", 1)
    if name.startswith(("/", "./", "../")) or name.endswith((".sqsh", ".sif")) or "://" in name:
        words = phrase("import-image-kind")
        report.leave_out(place, text, words, needed=True)
        return None
    _user, at, rest = name.partition("@")
    if at and not rest.startswith("sha256:"):
        report.warn(place, phrase("import-image-user"))
        name = rest
    return name


def read_storage(
    name: object, mount: str | None, place: DocumentPlace, report: ParseReport
) -> list[dict[str, Any]]:
    """Return the storage with a foreign name and mount point; empty if it has no counterpart.

    Names of other systems are in any case and with underscores and dots.

    Args:
        name: name of a volume or storage in the document.
        mount: directory in the job; None for the default of the storage.
        place: place of the value in the document.
        report: gets what has no counterpart.
    """
    own = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") if isinstance(name, str) else ""
    if not STORAGE_NAME.fullmatch(own):
        report.leave_out(place, name, phrase("import-volumes"), needed=True)
        return []
    if mount is not None and mount_problem(mount.rstrip("/")):
        report.leave_out(place, mount, phrase("import-mount"), needed=True)
        return []
    report.warn(place, phrase("import-storage", name=own))
    return [{"name": own, **({"mount": mount.rstrip("/")} if mount is not None else {})}]


GIB: Final = 1024**3
OFF: Final = -1

_RANGE: Final = re.compile(r"([0-9]{1,6})?(\.\.)?([0-9]{1,6})?")
_SIZE: Final = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,3})?)\s*(B|[KMGT]I?B?)?", re.IGNORECASE)
_DURATION: Final = re.compile(r"([0-9]{1,9})\s*([smhdw]?)")
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_POWERS: Final = {"": 3, "B": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def read_range(value: object) -> tuple[int | None, int | None]:
    """Return the bounds of ``2``, ``2..8``, ``2..``, ``..8`` or an object with min and max.

    Raises:
        RefusalError: the value is not a range.
    """
    if isinstance(value, Mapping) and set(value) <= {"min", "max"}:
        bounds = (value.get("min"), value.get("max"))
        if all(bound is None or _is_count(bound) for bound in bounds):
            return _upwards(*bounds)
    elif _is_count(value):
        return _upwards(value, value)
    elif isinstance(value, str) and (match := _RANGE.fullmatch(value.strip())):
        first, dots, last = match.groups()
        if first or last:
            least = int(first) if first else None
            return _upwards(least, (int(last) if last else None) if dots else least)
    raise RefusalError(
        phrase("import-not-a-range"), phrase("import-write-range"), shown=kind_of(value)
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**6


def _upwards(least: Any, most: Any) -> tuple[int | None, int | None]:
    if least is not None and most is not None and least > most:
        raise RefusalError(
            phrase("import-range-descends"), phrase("import-write-smaller-first"), "out-of-range"
        )
    return least, most


def read_bytes(value: object) -> int:
    """Return a size in bytes; a number without a unit is in gigabytes.

    Raises:
        RefusalError: the value is not a size.
    """
    text = str(value).strip() if isinstance(value, str | int | float) else ""
    match = None if isinstance(value, bool) else _SIZE.fullmatch(text)
    if match is None:
        raise RefusalError(phrase("import-not-a-size"), phrase("import-write-size"))
    unit = (match[2] or "")[:1].upper()
    size = int(float(match[1]) * 1024 ** _POWERS[unit])
    if not MIB <= size <= 64 * TIB:
        raise RefusalError(
            phrase("import-size-out-of-range"), phrase("import-write-size"), "out-of-range"
        )
    return size


def read_seconds(value: object) -> int:
    """Return the seconds of ``90``, ``15m``, ``2h``, ``1d`` or ``1w``; ``OFF`` for no limit.

    Raises:
        RefusalError: the value is not a duration.
    """
    if value is False or value in ("off", "-1", -1):
        return OFF
    text = "" if isinstance(value, bool) else str(value).strip()
    match = _DURATION.fullmatch(text) if isinstance(value, str | int) else None
    if match is None or int(match[1]) == 0:
        raise RefusalError(phrase("import-not-a-duration"), phrase("import-write-duration"))
    return int(match[1]) * _UNITS[match[2]]


_ASSIGNED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,127})=(.*)", re.DOTALL)
_REFERENCE: Final = re.compile(r"\$\{\{.*?\}\}")
_FROM_CALLER: Final = phrase("import-value-missing")


def read_variables(section: Section, key: str, *, hidden: bool = False) -> dict[str, str]:
    """Return the variables of an object or a list at ``key``; report those without a value."""
    value = section.peek(key)
    place = section.at(key)
    if isinstance(value, list):
        pairs = _listed(section, key)
    else:
        pairs = list(section.section(key).entries())
    found: dict[str, str] = {}
    for name, given, there in pairs:
        if given is None:
            section.report.leave_out(there, name, _FROM_CALLER, needed=True)
            continue
        try:
            text = plain_text(given)
        except RefusalError as refusal:
            there.note("" if hidden else given, refusal)
            continue
        if not hidden:
            report_references(text, there, section.report)
        if name in found:
            place.refuse(name, phrase("import-set-twice"), phrase("import-keep-one"), "duplicate")
        found[name] = text
    return found


def _listed(section: Section, key: str) -> list[tuple[str, Any, DocumentPlace]]:
    pairs: list[tuple[str, Any, DocumentPlace]] = []
    for item, place in section.items(key):
        if not isinstance(item, str):
            place.refuse(
                item,
                phrase("import-not-a-variable"),
                phrase("import-write-variable"),
                "wrong-type",
            )
        elif match := _ASSIGNED.fullmatch(item):
            pairs.append((match[1], match[2], place))
        else:
            pairs.append((item, None, place))
    return pairs


def report_references(text: str, place: DocumentPlace, report: ParseReport) -> None:
    """Report references that the server of the other system would have replaced."""
    for found in dict.fromkeys(_REFERENCE.findall(text)):
        words = phrase("import-server-reference")
        report.leave_out(place, found, words, needed=True)


_HOST: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._:-]{0,252}[A-Za-z0-9])?")
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_SSH_PORT: Final = 22
_OWN_KEY: Final = phrase("import-ssh-key")


def read_hosts(
    section: Section, *, pool: str, host_key: str, labels: dict[str, str]
) -> list[dict[str, Any]]:
    """Return the hosts of one list with their common settings.

    Args:
        section: object with ``hosts`` and the common settings.
        pool: name of the fleet or pool, for names of nodes.
        host_key: key of a host's address in its object.
        labels: labels for all nodes.
    """
    shared = {key: section.take(key) for key in ("user", "port")}
    shared["jump_host"] = _jump_host(section)
    _keys(section)
    nodes = []
    items = section.items("hosts")
    if not items:
        section.at("hosts").refuse(
            None, phrase("import-no-hosts"), phrase("import-give", key="hosts"), "missing-field"
        )
    for number, (item, place) in enumerate(items):
        given = dict(item) if isinstance(item, Mapping) else {host_key: item}
        host = Section(given, place, section.report)
        _keys(host)
        nodes.append(_node(host, host_key, shared, f"{pool}-{number}", labels))
        for key in ("internal_ip", "network"):
            host.leave_out(key, phrase("import-node-address"), needed=True)
        host.leave_out("blocks", phrase("import-no-blocks"), needed=False)
        host.finish()
    return nodes


def _keys(section: Section) -> None:
    for key in ("identity_file", "ssh_key", "password"):
        section.leave_out(key, _OWN_KEY, needed=True)


def _jump_host(section: Section) -> str:
    """Return the jump host of a list of hosts, or of one host; empty for none."""
    if not section.has("proxy_jump"):
        return ""
    inner = section.section("proxy_jump")
    host, user = inner.text("hostname", required=True) or "", inner.text("user") or ""
    port = inner.integer("port", 1, 65_535) or _SSH_PORT
    _keys(inner)
    inner.finish()
    jump = {"host": host, "port": port, "user": user}
    if host and parse_jump_host(jump_host_text(jump)) != jump:
        section.at("proxy_jump").refuse(
            f"{user}@{host}", phrase("import-not-an-address"), phrase("import-write-jump-host")
        )
        return ""
    section.report.warn(section.at("proxy_jump"), phrase("import-jump-host"))
    return jump_host_text(jump) if host else ""


def _node(
    host: Section, host_key: str, shared: dict[str, Any], name: str, labels: dict[str, str]
) -> dict[str, Any]:
    address = host.text(host_key, required=True) or ""
    jump = _jump_host(host) or shared["jump_host"]
    user, at, bare = address.rpartition("@")
    user = str(host.take("user") or (user if at else "") or shared["user"] or "")
    port = host.take("port") or shared["port"] or _SSH_PORT
    _check(
        host.at(host_key),
        bare,
        _HOST,
        phrase("import-not-an-address"),
        phrase("import-write-address"),
    )
    if not user:
        host.report.warn(host.place, phrase("import-no-user"))
    else:
        _check(
            host.at("user"), user, _USER, phrase("import-not-a-user"), phrase("import-write-user")
        )
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65_536:
        host.at("port").refuse(port, phrase("import-not-a-port"), phrase("import-write-port"))
    node = {"name": name, "host": bare, "port": port, "user": user, "labels": labels}
    return {**node, "jump_host": jump} if jump else node


def _check(
    place: DocumentPlace, text: str, pattern: re.Pattern[str], message: str, remedy: str
) -> None:
    if text and not pattern.fullmatch(text):
        place.refuse(text, message, remedy)


def plain_text(value: object) -> str:
    """Return a value in the format of OpenPAI's own renderer.

    Raises:
        RefusalError: the value is an object, a list or null.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        number = Decimal(repr(value))
        if number.is_finite() and 1e-6 <= abs(value) < 1e21:
            text = format(number, "f")
            return text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if value == 0 else repr(value)
    if isinstance(value, int | str):
        return str(value)
    raise RefusalError(phrase("import-no-text"), phrase("import-refer-to-text"))
