"""Parser of job specifications; it returns a specification or all errors of the document."""

from collections.abc import Mapping
from typing import Any, Final

from scheduling.core.jobspec.elastic import ElasticMode
from scheduling.core.jobspec.elastic_fields import check_profile, check_workers
from scheduling.core.jobspec.errors import DocumentPlace, InvalidJobSpecError, RefusalError
from scheduling.core.jobspec.job_fields import JOB_FIELDS
from scheduling.core.jobspec.parallel import check_parallel
from scheduling.core.jobspec.scalars import KIB
from scheduling.core.jobspec.sharing import check_guest
from scheduling.core.jobspec.table import read_object
from scheduling.core.jobspec.values import JobClass, JobSpec, Processes
from scheduling.core.messages import sentence

MAX_SPEC_BYTES: Final = 256 * KIB
MAX_PORTS: Final = 1000
PIN_NEEDS_GUARANTEE: Final = sentence("needs-guaranteed-job")
PIN_REMEDY: Final = sentence("use-guaranteed-or-omit-pin")


def parse(document: object) -> JobSpec:
    """Check a submitted document.

    Args:
        document: result of a JSON or YAML parser.

    Returns:
        The job, with units resolved and defaults filled in.

    Raises:
        InvalidJobSpecError: the document is refused, with all errors at once.
    """
    return _parse(document, DocumentPlace())


def parse_stored(document: object, *, ignores_unknown: bool = True) -> JobSpec:
    """Read what ``JobSpec.to_json`` wrote, in which secrets may have been taken out.

    Args:
        document: the stored document.
        ignores_unknown: ignore unknown fields, since in a rolling upgrade the next release may
            have stored the document. A caller that stores the result must refuse them.

    Raises:
        InvalidJobSpecError: the document is malformed.
    """
    return _parse(document, DocumentPlace(redacted=True, ignores_unknown=ignores_unknown))


def _parse(document: object, place: DocumentPlace) -> JobSpec:
    given: dict[str, Any] = {}
    try:
        check_size(document)
        given = read_object(document, JOB_FIELDS, place)
    except RefusalError as refusal:
        place.note(document, refusal)
    _check_job(given, place)
    if place.errors:
        raise InvalidJobSpecError(place.errors)
    given.pop("schema_version", None)
    return JobSpec(job_class=given.pop("class", JobClass.GUARANTEED), **given)


def check_size(document: object) -> None:
    """Reject a document that is too large to parse, regardless of its nesting.

    Raises:
        RefusalError: the document exceeds 256 KiB.
    """
    weight, waiting = 0, [document]
    while waiting:
        item = waiting.pop()
        weight += 1
        if isinstance(item, str):
            weight += len(item.encode("utf-8", "surrogatepass"))
        elif isinstance(item, Mapping):
            waiting.extend((*item.keys(), *item.values()))
        elif isinstance(item, list | tuple):
            waiting.extend(item)
        if weight + len(waiting) > MAX_SPEC_BYTES:
            raise RefusalError(
                sentence("document-too-large"), sentence("upload-archive"), "too-long"
            )


def _check_job(given: Mapping[str, Any], place: DocumentPlace) -> None:
    """Check the consistency of several fields."""
    _check_part(given, place)
    _check_pins(given, place)
    _check_devices(given, place)
    _check_elastic(given, place)
    check_parallel(given, place)
    _check_ports(given, place)
    _check_rdma(given, place)
    _check_processes(given, place)
    check_guest(given, place)
    compat = given.get("compat")
    roles = given.get("roles", {})
    if compat is None:
        return
    for name in compat.role_names:
        if name not in roles:
            place.child("compat").child("role_names").child(name).refuse(
                name, sentence("not-role"), sentence("remove-it"), "conflict"
            )


def _check_ports(given: Mapping[str, Any], place: DocumentPlace) -> None:
    """Refuse new jobs with too many ports; stored jobs already have their ports."""
    if place.redacted:
        return
    elastic = given.get("elastic")
    total = 0
    for role in filter(None, given.get("roles", {}).values()):
        size = role.instances * role.devices
        most = elastic.bounds(size)[1] if elastic is not None else size
        largest = most // role.devices if role.devices else 0
        total += max(role.instances, largest) * sum(role.ports.values())
    if total > MAX_PORTS:
        place.child("roles").refuse(
            total,
            sentence("too-many-ports", total=total),
            sentence("use-fewer-ports", most=MAX_PORTS),
            "out-of-range",
        )


def _check_devices(given: Mapping[str, Any], place: DocumentPlace) -> None:
    """Refuse fields about devices in a job whose roles all have none."""
    roles = given.get("roles", {})
    if not roles or any(role is None or role.devices for role in roles.values()):
        return
    for name in ("elastic", "parallel", "sharing"):
        if given.get(name) is not None:
            place.child(name).refuse(
                None, sentence("needs-devices"), sentence("omit", name=name), "conflict"
            )


def _check_rdma(given: Mapping[str, Any], place: DocumentPlace) -> None:
    """Refuse RDMA for one instance: it has its own network, whose rules RDMA would bypass."""
    roles = given.get("roles", {})
    is_gang = given.get("gang", True) and sum(r.instances for r in roles.values() if r) > 1
    for name, role in roles.items():
        if role and role.container.rdma and not is_gang:
            place.child("roles").child(name).child("container").child("rdma").refuse(
                role.container.rdma,
                sentence("needs-several-instances"),
                sentence("omit-rdma-or-add-instances"),
                "conflict",
            )


def _check_processes(given: Mapping[str, Any], place: DocumentPlace) -> None:
    """Refuse processes per device for hybrid parallelism, whose plan determines the processes."""
    elastic = given.get("elastic")
    is_hybrid = elastic is not None and elastic.mode is ElasticMode.HYBRID
    if not is_hybrid and given.get("parallel") is None:
        return
    for name, role in given.get("roles", {}).items():
        if role and role.processes is Processes.PER_DEVICE:
            place.child("roles").child(name).child("processes").refuse(
                role.processes.value,
                sentence("plan-sets-processes"),
                sentence("omit-processes"),
                "conflict",
            )


def _check_pins(given: Mapping[str, Any], place: DocumentPlace) -> None:
    if given.get("class") is not JobClass.OPPORTUNISTIC:
        return
    for name, role in given.get("roles", {}).items():
        if role and role.pinned_cell is not None:
            place.child("roles").child(name).child("pinned_cell").refuse(
                role.pinned_cell, PIN_NEEDS_GUARANTEE, PIN_REMEDY, "conflict"
            )


def _check_elastic(given: Mapping[str, Any], place: DocumentPlace) -> None:
    """Check that the bounds of a job include its size, and that other sizes have a shape."""
    elastic, roles = given.get("elastic"), list(given.get("roles", {}).values())
    if elastic is None or not all(roles):
        return
    there = place.child("elastic")
    if len(roles) != 1 or not given.get("gang", True):
        words = sentence("needs-gang-of-one-role")
        there.refuse(None, words, sentence("omit-elastic"), "conflict")
        return
    (role,) = roles
    size = role.instances * role.devices
    if not size:
        return  # refused, since it has no devices
    check_workers(elastic, size, there)
    check_profile(elastic, size, there)
    least, most = elastic.bounds(size)
    shown = {"min": least, "max": most}
    if not least <= size <= most:
        remedy = sentence("widen-sizes", size=size)
        there.refuse(shown, sentence("sizes-exclude-request", size=size), remedy, "out-of-range")
    elif not has_sizes(role.instances, role.devices, least, most):
        there.refuse(
            shown,
            sentence("sizes-not-possible", devices=role.devices),
            sentence("use-possible-sizes"),
            "conflict",
        )


def has_sizes(instances: int, devices: int, least: int, most: int) -> bool:
    """Return whether a role has a shape for all sizes between two bounds (see ``sizing``)."""
    whole = least % devices == 0 and most % devices == 0
    powers = all(size & (size - 1) == 0 for size in (instances, devices))
    return most <= devices or whole or powers


def _check_part(given: Mapping[str, Any], place: DocumentPlace) -> None:
    part = given.get("part")
    if part is None:
        return
    there = place.child("part")
    if given.get("gang", True):
        there.refuse(
            None, sentence("needs-job-without-gang"), sentence("write-gang-false"), "conflict"
        )
    if part.rank >= part.size:
        words = sentence("rank-too-high")
        there.child("rank").refuse(part.rank, words, sentence("count-from-0"), "conflict")
    if sum(role.instances for role in given.get("roles", {}).values() if role) > 1:
        there.refuse(
            None, sentence("part-of-several-instances"), sentence("omit-part"), "conflict"
        )
