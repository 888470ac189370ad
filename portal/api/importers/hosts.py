"""Lists of SSH hosts in other systems' documents, as nodes."""

import re
from collections.abc import Mapping
from typing import Any, Final

from portal.api.importers.reading import Section
from scheduling.core.jobspec.errors import Place

_HOST: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._:-]{0,252}[A-Za-z0-9])?")
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_SSH_PORT: Final = 22
_OWN_KEY: Final = "The portal signs in with a key of its own; add that to the host."


def read_hosts(
    section: Section, *, pool: str, host_key: str, labels: dict[str, str]
) -> list[dict[str, Any]]:
    """The hosts of one list, with what they share.

    Args:
        section: holds ``hosts``, and what is the same for all.
        pool: name of the fleet or pool, for names of nodes.
        host_key: what the address of a host is called in its object.
        labels: for all nodes.
    """
    shared = {key: section.take(key) for key in ("user", "port")}
    _keys(section)
    nodes = []
    items = section.items("hosts")
    if not items:
        section.at("hosts").refuse(None, "names no host.", "Give hosts.", "missing-field")
    for number, (item, place) in enumerate(items):
        given = dict(item) if isinstance(item, Mapping) else {host_key: item}
        host = Section(given, place, section.report)
        _keys(host)
        nodes.append(_node(host, host_key, shared, f"{pool}-{number}", labels))
        for key in ("internal_ip", "network"):
            host.lacks(key, "Nodes meet at the address that the portal uses.", needed=True)
        host.lacks("blocks", "Devices are shared out one by one.", needed=False)
        host.finish()
    return nodes


def _keys(section: Section) -> None:
    for key in ("identity_file", "ssh_key", "password"):
        section.lacks(key, _OWN_KEY, needed=True)
    section.lacks("proxy_jump", "Nodes are reached without a jump host.", needed=True)


def _node(
    host: Section, host_key: str, shared: dict[str, Any], name: str, labels: dict[str, str]
) -> dict[str, Any]:
    address = host.text(host_key, required=True) or ""
    user, at, bare = address.rpartition("@")
    user = str(host.take("user") or (user if at else "") or shared["user"] or "")
    port = host.take("port") or shared["port"] or _SSH_PORT
    _check(host.at(host_key), bare, _HOST, "is not an address.", "Write a name or an IP address.")
    if not user:
        host.report.warn(host.place, "names no user; write the one to sign in as.")
    else:
        _check(host.at("user"), user, _USER, "is no user name.", "Write a user name.")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65_536:
        host.at("port").refuse(port, "is no port.", "Write a number from 1 to 65535.")
    return {"name": name, "host": bare, "port": port, "user": user, "labels": labels}


def _check(place: Place, text: str, pattern: re.Pattern[str], message: str, remedy: str) -> None:
    if text and not pattern.fullmatch(text):
        place.refuse(text, message, remedy)
