"""Validation of ``dedicated_to`` and ``visible_paths``: names of tenants become ids."""

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tenants.errors import FieldError, InvalidError
from tenants.models import Tenant
from tessera.isolation import MAX_PATH_BYTES, MAX_VISIBLE_PATHS, is_within, path_problem

MOST_TENANTS: Final = 100
_SECRET_PLACES: Final = (
    "/root", "/boot", "/etc/ssh", "/etc/shadow", "/etc/sudoers", "/var/lib/docker",
)  # fmt: skip
_RUNNER: Final = ".tessera"
_KEYS: Final = frozenset({"path", "writable", "checkpoints", "tenants"})


def in_rows(values: Mapping[str, Any]) -> dict[str, Any]:
    """``dedicated_to`` and ``visible_paths`` as they are stored, of those that are there.

    Raises:
        InvalidError: a tenant does not exist, or a path cannot be shown; all of them are named.
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
                message="This is not a list of tenants.",
                remedy=f"Give a list of at most {MOST_TENANTS} names; an empty one means all.",
            )
        )
        return []
    unknown = [name for name in names if not isinstance(name, str) or name not in known]
    faults += [
        FieldError(
            field=field,
            value=name,
            message="There is no tenant with this name.",
            remedy="Use the short name of a tenant.",
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
                message="This is not a list of paths.",
                remedy=f"Give a list of at most {MAX_VISIBLE_PATHS} objects with a path.",
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
                    message="This is not a visible path.",
                    remedy="Use the keys path, writable, checkpoints and tenants.",
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
                    message="Jobs cannot be shown this path.",
                    remedy=f"The path {problem or 'must be listed once'}.",
                )
            )
            continue
        tenants = _tenants(entry.get("tenants", []), f"{field}.tenants", known, faults)
        kind = {"writable": writable, "checkpoints": checkpoints}
        found.append({"path": path, **kind, "tenants": tenants})
    return found


def _problem(path: object, writable: object, checkpoints: object) -> str:
    """Why jobs cannot be shown a path; empty when they can."""
    if not isinstance(path, str) or not {type(writable), type(checkpoints)} <= {bool}:
        return "must be a text, and writable and checkpoints true or false"
    if writable and checkpoints:
        return "must be either writable or for checkpoints"
    return _problem_of_place(path)


def _problem_of_place(path: str) -> str:
    if len(path.encode()) > MAX_PATH_BYTES:
        return f"must have at most {MAX_PATH_BYTES} bytes"
    problem = path_problem(path)
    if problem is not None:
        return problem
    if posixpath.normpath(path) != path or _RUNNER in path.split("/"):
        return "must be normalised and lie outside of the runner's directory ~/.tessera"
    if any(is_within(place, path) or is_within(path, place) for place in _SECRET_PLACES):
        return "must not hold keys or passwords of the system"
    return ""
