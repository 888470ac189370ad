"""Validation of an admin's values for a node: names, addresses, keys, tenants, visible paths."""

import base64
import binascii
import hashlib
import ipaddress
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from scheduling.common.edits import label_errors
from scheduling.core.jump_hosts import parse_jump_host
from scheduling.core.messages import sentence
from tenants.errors import FieldError, InvalidError
from tenants.models import Tenant
from tessera import job_networks
from tessera.isolation import MAX_PATH_BYTES, MAX_VISIBLE_PATHS, is_within, path_problem
from tessera.messages import plain

MOST_KEY_BYTES: Final = 16_384
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_HOST: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}\$?")
_INTERFACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,14}")
_SHARES: Final[Mapping[str, tuple[float, float]]] = {
    "device_cpus": (0.1, 4096),
    "device_memory_bytes": (64 << 20, 1 << 50),
}
_KEY_KIND: Final = re.compile(r"(ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9@.-]{1,60}")


def node_faults(values: Mapping[str, Any]) -> list[FieldError]:
    """Return all faults of the given values."""
    checks = (
        (
            "name",
            _NAME,
            sentence("use-node-name"),
        ),
        ("user", _USER, sentence("use-node-account")),
    )
    faults = [
        _fault(field, values[field], remedy)
        for field, pattern, remedy in checks
        if field in values and not _matches(pattern, values[field])
    ]
    if "host" in values and not _is_host(values["host"]):
        faults.append(_fault("host", values["host"], sentence("use-host")))
    if "port" in values and not _is_port(values["port"]):
        faults.append(_fault("port", values["port"], sentence("use-port")))
    if "labels" in values:
        faults += label_errors(values["labels"])
    if "job_network" in values and values["job_network"] not in ("", *job_networks.SETTINGS):
        faults.append(
            FieldError(
                field="job_network",
                value=values["job_network"],
                message=sentence("not-network-setting"),
                remedy=sentence("use-network-setting", names=", ".join(job_networks.SETTINGS)),
            )
        )
    if values.get("data_interface") and not _matches(_INTERFACE, values["data_interface"]):
        remedy = sentence("use-interface")
        faults.append(_fault("data_interface", values["data_interface"], remedy))
    faults += _share_faults(values)
    return faults + _key_faults(values) + jump_faults(values.get("jump_host"))


def _share_faults(values: Mapping[str, Any]) -> list[FieldError]:
    """Return the faults of the share of each device; None is an equal part of the node."""
    faults = []
    for field, (least, most) in _SHARES.items():
        value = values.get(field)
        if value is None:
            continue
        kinds = (int, float) if field == "device_cpus" else (int,)
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:
            remedy = sentence("write-share", least=least, most=most)
            faults.append(_fault(field, value, remedy))
    return faults


_JUMP_KEYS: Final = frozenset({"host", "port", "user", "host_key", "host_key_fingerprint"})


def read_jump_host(text: str) -> dict[str, Any]:
    """Return host, port and user of ``USER@HOST[:PORT]``; empty for an empty text.

    Raises:
        InvalidError: the text is not a valid address.
    """
    if not text.strip():
        return {}
    jump = parse_jump_host(text)
    if jump is None:
        fault = _fault("jump_host", text[:300], sentence("use-jump-host"))
        raise InvalidError(errors=[fault])
    faults = jump_faults(jump, has_key=False)
    InvalidError.raise_if([replace(fault, field="jump_host") for fault in faults])
    return jump


def jump_faults(jump: object, *, has_key: bool = True) -> list[FieldError]:
    """Return the faults of a jump host; none for a direct connection.

    Args:
        jump: host, port and user, with its key and the confirmed fingerprint.
        has_key: False while the key is not known yet.
    """
    if not jump:
        return []
    wanted = _JUMP_KEYS if has_key else _JUMP_KEYS - {"host_key", "host_key_fingerprint"}
    if not isinstance(jump, Mapping) or jump.keys() != wanted:
        return [_fault("jump_host", None, sentence("use-jump-host"))]
    faults = _key_faults(jump)
    if not _is_host(jump["host"]):
        faults.append(_fault("host", jump["host"], sentence("use-host")))
    if not _is_port(jump["port"]):
        faults.append(_fault("port", jump["port"], sentence("use-port")))
    if not _matches(_USER, jump["user"]):
        faults.append(_fault("user", jump["user"], sentence("use-jump-host")))
    return [replace(fault, field=f"jump_host.{fault.field}") for fault in faults]


def _fault(field: str, value: object, remedy: str) -> FieldError:
    return FieldError(
        field=field,
        value=value,
        message=sentence("not-field-of-node", field=plain(field)),
        remedy=remedy,
    )


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_host(value: object) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= 255:
        return False
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return _matches(_HOST, value)
    return "%" not in value


def _is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535


def _key_faults(values: Mapping[str, Any]) -> list[FieldError]:
    if "host_key" not in values and "host_key_fingerprint" not in values:
        return []
    line, fingerprint = values.get("host_key"), values.get("host_key_fingerprint")
    real = fingerprint_of(line)
    if real is None:
        return [_fault("host_key", None, sentence("give-host-key"))]
    if fingerprint != real:
        return [
            FieldError(
                field="host_key_fingerprint",
                value=fingerprint,
                message=sentence("other-fingerprint", fingerprint=real),
                remedy=sentence("confirm-fingerprint"),
            )
        ]
    return []


def fingerprint_of(line: object) -> str | None:
    """Return the SHA-256 fingerprint of a public key line in OpenSSH's format; None if invalid."""
    if not isinstance(line, str) or len(line) > MOST_KEY_BYTES or "\n" in line.strip():
        return None
    words = line.split()
    if len(words) < 2 or not _KEY_KIND.fullmatch(words[0]):
        return None
    try:
        blob = base64.b64decode(words[1], validate=True)
    except (binascii.Error, ValueError):
        return None
    kind = words[0].encode()
    if blob[:4] != len(kind).to_bytes(4, "big") or blob[4 : 4 + len(kind)] != kind:
        return None
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


MOST_TENANTS: Final = 100
_SECRET_PLACES: Final = (
    "/root", "/boot", "/etc/ssh", "/etc/shadow", "/etc/sudoers", "/var/lib/docker",
)  # fmt: skip
_RUNNER: Final = ".tessera"
_KEYS: Final = frozenset({"path", "writable", "checkpoints", "tenants"})


def in_rows(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given ``dedicated_to`` and ``visible_paths`` in their stored form.

    Raises:
        InvalidError: a tenant does not exist, or a path is not allowed; the error lists all
            faults.
    """
    faults: list[FieldError] = []
    found: dict[str, Any] = {}
    known = dict(Tenant.objects.unscoped().values_list("name", "id"))
    if "dedicated_to" in values:
        found["dedicated_to"] = _tenants(values["dedicated_to"], "dedicated_to", known, faults)
    if "visible_paths" in values:
        found["visible_paths"] = _paths(values["visible_paths"], known, faults)
    InvalidError.raise_if(faults)
    return found


def _tenants(
    names: object, field: str, known: Mapping[str, int], faults: list[FieldError]
) -> list[int]:
    if not isinstance(names, Sequence) or isinstance(names, str) or len(names) > MOST_TENANTS:
        faults.append(
            FieldError(
                field=field,
                value=names,
                message=sentence("not-list-of-tenants"),
                remedy=sentence("give-tenants", most=MOST_TENANTS),
            )
        )
        return []
    unknown = [name for name in names if not isinstance(name, str) or name not in known]
    faults += [
        FieldError(
            field=field,
            value=name,
            message=sentence("no-such-tenant"),
            remedy=sentence("use-tenant-short-name"),
        )
        for name in unknown
    ]
    return sorted({known[name] for name in names if name not in unknown})


def _paths(
    entries: object, known: Mapping[str, int], faults: list[FieldError]
) -> list[dict[str, Any]]:
    if (
        not isinstance(entries, Sequence)
        or isinstance(entries, str)
        or len(entries) > MAX_VISIBLE_PATHS
    ):
        faults.append(
            FieldError(
                field="visible_paths",
                value=entries,
                message=sentence("not-list-of-paths"),
                remedy=sentence("give-paths", most=MAX_VISIBLE_PATHS),
            )
        )
        return []
    found: list[dict[str, Any]] = []
    for place, entry in enumerate(entries):
        field = f"visible_paths[{place}]"
        if not isinstance(entry, Mapping) or set(entry) - _KEYS:
            faults.append(
                FieldError(
                    field=field,
                    value=entry,
                    message=sentence("not-visible-path"),
                    remedy=sentence("use-path-keys"),
                )
            )
            continue
        path, writable = entry.get("path"), entry.get("writable", False)
        checkpoints = entry.get("checkpoints", False)
        problem = _problem(path, writable, checkpoints)
        if problem or path in [one["path"] for one in found]:
            faults.append(
                FieldError(
                    field=f"{field}.path",
                    value=path,
                    message=sentence("path-not-for-jobs"),
                    remedy=sentence(
                        "path-problem", problem=plain(problem or "must be listed once")
                    ),
                )
            )
            continue
        tenants = _tenants(entry.get("tenants", []), f"{field}.tenants", known, faults)
        kind = {"writable": writable, "checkpoints": checkpoints}
        found.append({"path": path, **kind, "tenants": tenants})
    return found


def _problem(path: object, writable: object, checkpoints: object) -> str:
    """Return the reason why a path is not valid; empty if it is."""
    if not isinstance(path, str) or not {type(writable), type(checkpoints)} <= {bool}:
        return "path must be a string, and writable and checkpoints true or false"
    if writable and checkpoints:
        return "must be either writable or for checkpoints"
    return place_problem(path)


def place_problem(path: str) -> str:
    """Return the reason why no job may see a path of a node; empty if jobs may."""
    if len(path.encode()) > MAX_PATH_BYTES:
        return f"must have at most {MAX_PATH_BYTES} bytes"
    problem = path_problem(path)
    if problem is not None:
        return problem
    if posixpath.normpath(path) != path or _RUNNER in path.split("/"):
        return "must be normalized and outside the runner's directory ~/.tessera"
    if any(is_within(place, path) or is_within(path, place) for place in _SECRET_PLACES):
        return "must not contain keys or passwords of the system"
    return ""
