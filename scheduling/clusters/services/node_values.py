"""Checking what an admin says about a node: names, addresses, keys."""

import base64
import binascii
import hashlib
import ipaddress
import re
from collections.abc import Mapping
from typing import Any, Final

from scheduling.common.edits import label_errors
from scheduling.core.messages import sentence
from tenants.errors import FieldError
from tessera import job_networks
from tessera.messages import plain

MOST_KEY_BYTES: Final = 16_384
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_HOST: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}\$?")
_KEY_KIND: Final = re.compile(r"(ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9@.-]{1,60}")


def node_faults(values: Mapping[str, Any]) -> list[FieldError]:
    """Everything that is wrong with the values that are there."""
    checks = (
        (
            "name",
            _NAME,
            "1 to 63 of A-Z a-z 0-9 . _ -, beginning and ending with a letter or digit",
        ),
        ("user", _USER, "the name of an account on the node, as in user@host"),
    )
    faults = [
        _fault(field, values[field], f"Use {remedy}.")
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
                remedy=f"Use {', '.join(job_networks.SETTINGS)}, or nothing for the node's own.",
            )
        )
    return faults + _key_faults(values)


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
    """The SHA-256 fingerprint of a public key line as OpenSSH writes it; None if it is none."""
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
