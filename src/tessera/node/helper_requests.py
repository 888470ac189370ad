"""Validation of all requests of an account to the helper, which is root: see ``helper``.

A request names a user of the configured range, and describes a sandbox. Files are opened with the
rights of the account (``accounts``, ``places``); all other fields are checked here.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import stat
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from tessera.node.accounts import Account, changeable_part
from tessera.node.sandbox_root import DEVICES, SYSTEM, Bind, Plan

CONFIGURATION = "/etc/tessera/helper.json"
FIRST_UID, LAST_UID, SHARED_UID = 71_000, 79_999, 70_999
LEAST_UID, MOST_UID = 1_000, (1 << 31) - 1
NOBODY = 65_534
MOST_ITEMS, MOST_NUMBER = 4_096, 1 << 62
MOST_PATH_BYTES = 4_095
SECRETS = "/tessera/secrets"
OWN_TARGETS = tuple(f"/tessera/{name}" for name in ("work", "job", "checkpoints", "home"))
BUNDLE = "/tessera/node.pyz"
_RESOLVER = "/etc/resolv.conf"
_MOST_LINKS = 40
_RESERVED = ("/proc", "/dev", "/sys", "/run", "/var/run", "/etc", "/.old", "/tessera")
_DEVICE = re.compile(
    r"/dev/(nvidia(\d{1,4}|ctl|-uvm|-uvm-tools|-caps/nvidia-cap\d{1,6})"
    r"|kfd|dri/renderD\d{1,4}|davinci(\d{1,4}|_manager)|devmm_svm|hisi_hdc)"
)


class RequestError(Exception):
    """A request that the helper refuses; the message is for people."""


class Rules(NamedTuple):
    """Limits of the helper for its account.

    Attributes:
        account: user of the helper.
        first, last: the range of users that jobs may have.
        directories: whose files may be given to these users.
    """

    account: Account
    first: int
    last: int
    directories: Tuple[str, ...]


# -- the configuration ---------------------------------------------------------------------------


def read_rules(account: Account, home: str, path: str = CONFIGURATION) -> Rules:
    """Return the rules of an account from the node's configuration, or the defaults.

    Args:
        account: user of the helper.
        home: home directory of the account.
        path: path of the configuration.

    Raises:
        RequestError: the configuration is malformed, or another user than root can change it.
    """
    found: Dict[str, Any] = {}
    if os.path.lexists(path):
        part = changeable_part(path)
        if part:
            raise RequestError(f"{path}: {part} is writable by users other than root")
        with open(path, encoding="utf-8") as file:
            try:
                found = json.loads(file.read(1 << 16))
            except ValueError:
                found = {"": "not JSON"}
    if not isinstance(found, dict) or set(found) - {"uids", "directories"}:
        raise RequestError(f"{path}: must be an object with uids and directories")
    uids = found.get("uids", [FIRST_UID, LAST_UID])
    if not _is_range(uids) or uids[0] <= account.uid <= uids[1]:
        raise RequestError(
            f"{path}: uids must be the first and the last user id, from {LEAST_UID} to"
            f" {MOST_UID}, without {NOBODY} and without that of the account"
        )
    directories = found.get("directories", [])
    if not isinstance(directories, list) or not all(map(_is_path, directories)):
        raise RequestError(f"{path}: directories must be absolute paths")
    own = os.path.join(os.path.realpath(home), ".tessera")
    return Rules(account, uids[0], uids[1], (own, *directories))


def _is_range(found: object) -> bool:
    return (
        isinstance(found, list)
        and len(found) == 2
        and all(type(one) is int for one in found)
        and LEAST_UID <= found[0] <= found[1] <= MOST_UID
        and not found[0] <= NOBODY <= found[1]
    )


# -- requests ------------------------------------------------------------------------------------


def uid_of(found: object, rules: Rules) -> int:
    """Return the user of a job.

    Raises:
        RequestError: the user is outside the range, or is an account of the node.
    """
    if type(found) is not int or not (rules.first <= found <= rules.last or found == SHARED_UID):
        text = f"{found}"[:40]
        raise RequestError(
            f"user id {text} is not from {rules.first} to {rules.last}, the range of the helper"
            f" ({CONFIGURATION})"
        )
    try:
        name = pwd.getpwuid(found).pw_name
    except KeyError:
        return found
    raise RequestError(
        f"user id {found} belongs to the account {name} of the node: remove the account, or choose"
        f" uids without accounts ({CONFIGURATION} and TESSERA_TENANT_UIDS)"
    )


def plan_of(found: object, rules: Rules) -> Plan:
    """Build the plan of a sandbox from a request.

    Raises:
        RequestError: a field is missing, unknown or malformed, or not allowed for the account.
    """
    if not isinstance(found, dict) or set(found) != set(_FIELDS):
        raise RequestError(f"the plan must have the fields {', '.join(sorted(_FIELDS))}")
    for name, is_good in _FIELDS.items():
        if not is_good(found[name]):
            raise RequestError(f"{name} is malformed or not allowed")
    binds = [Bind(*item) for item in found["binds"]]
    for bind in binds:
        _check_target(bind.target)
    for path in found["owned"]:
        if not any(f"{path}/".startswith(f"{top}/") for top in rules.directories):
            raise RequestError(
                f"{path} is not in {' or '.join(rules.directories)}: jobs may not use files in "
                f"it ({CONFIGURATION}: directories)"
            )
    account = rules.account
    return Plan(
        uid=uid_of(found["uid"], rules),
        binds=binds,
        hidden=found["hidden"],
        devices=found["devices"],
        secrets=None if found["secrets"] is None else (found["secrets"], SECRETS),
        owned=found["owned"],
        owners=[account.uid, SHARED_UID],
        group=account.gid,
        tmp_bytes=found["tmp_bytes"],
        shm_bytes=found["shm_bytes"],
        file_bytes=found["file_bytes"],
        home=found["home"],
        directory=found["directory"],
        arguments=found["arguments"],
        environment=found["environment"],
        resolver=found["resolver"],
        processes=found["processes"],
        account=account,
    )


def fields_of(plan: Plan) -> Dict[str, Any]:
    """Build the fields of a request for a sandbox, see ``plan_of``."""
    found = {name: getattr(plan, name) for name in _FIELDS}
    found["secrets"] = None if plan.secrets is None else plan.secrets[0]
    return found


def check_output(descriptor: int, account: Account) -> None:
    """Check that the job's output is a pipe of the account: it is given to the job's user.

    Raises:
        RequestError: the output is not a pipe of the account.
    """
    found = os.fstat(descriptor)
    if not stat.S_ISFIFO(found.st_mode) or found.st_uid != account.uid:
        raise RequestError("the output must be a pipe of the account")


def _check_target(target: str) -> None:
    """Refuse targets that root itself reads or writes while it creates the sandbox."""
    if target in OWN_TARGETS or target == BUNDLE:
        return
    if (
        any(f"{target}/".startswith(f"{place}/") for place in _RESERVED)
        or target in SYSTEM
        or any(f"{place}/".startswith(f"{target}/") for place in _places_of(_RESOLVER))
    ):
        raise RequestError(f"{target} is not a valid mount point")


def _places_of(path: str) -> List[str]:
    """Return a path, the literal targets of its links, and its end."""
    found = [path]
    while os.path.islink(found[-1]) and len(found) < _MOST_LINKS:
        target = os.path.join(os.path.dirname(found[-1]), os.readlink(found[-1]))
        found.append(os.path.normpath(target))
    return [*found, os.path.realpath(path)]


def _is_path(found: object) -> bool:
    return (
        isinstance(found, str)
        and 1 < len(os.fsencode(found)) <= MOST_PATH_BYTES
        and found.startswith("/")
        and not found.startswith("//")
        and os.path.normpath(found) == found
        and "\0" not in found
    )


def _is_text(found: object) -> bool:
    return isinstance(found, str) and "\0" not in found


def _is_number(found: object) -> bool:
    return type(found) is int and 0 <= found <= MOST_NUMBER


def _is_list(is_good: Callable[[Any], bool], least: int = 0) -> Callable[[Any], bool]:
    def check(found: object) -> bool:
        return (
            isinstance(found, list)
            and least <= len(found) <= MOST_ITEMS
            and all(map(is_good, found))
        )

    return check


def _is_bind(found: object) -> bool:
    if not isinstance(found, list) or len(found) != 4:
        return False
    source, target, *flags = found
    is_named = _is_text(source) and source.startswith("/") and _is_path(target)
    return is_named and all(type(one) is bool for one in flags)


def _is_environment(found: object) -> bool:
    return isinstance(found, dict) and all(
        name and "=" not in name and _is_text(name) and _is_text(value)
        for name, value in found.items()
    )


def _is_device(found: object) -> bool:
    return isinstance(found, str) and (found in DEVICES or bool(_DEVICE.fullmatch(found)))


def _is_resolver(found: object) -> bool:
    return isinstance(found, str) and found.isascii() and len(found) <= 4_096


_FIELDS: Dict[str, Callable[[Any], bool]] = {
    "uid": lambda found: True,  # see uid_of
    "binds": _is_list(_is_bind),
    "hidden": _is_list(_is_path),
    "devices": _is_list(_is_device),
    "secrets": lambda found: found is None or _is_path(found),
    "owned": _is_list(_is_path),
    "tmp_bytes": _is_number,
    "shm_bytes": _is_number,
    "file_bytes": _is_number,
    "home": _is_path,
    "directory": _is_text,
    "arguments": _is_list(_is_text, 1),
    "environment": _is_environment,
    "resolver": _is_resolver,
    "processes": _is_number,
}
