"""Validation of a job against virtual clusters, priorities and device types."""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from scheduling.clusters.models import VirtualCluster
from scheduling.clusters.queries.cpu_pools import stored_pools
from scheduling.clusters.queries.node_isolation import visible_to
from scheduling.core.cpu_pools import NOTHING, fitted, gibibytes, sizes_of
from scheduling.core.device_types import MOST_TYPES
from scheduling.core.jobspec import (
    Demand,
    InvalidJobSpecError,
    JobClass,
    JobSpec,
    demand,
    parse,
    split,
)
from scheduling.core.jobspec import (
    FieldError as SpecFieldError,
)
from scheduling.core.messages import sentence
from scheduling.core.round.cpu_jobs import amounts_of
from scheduling.core.storages import resolved
from scheduling.jobs.models import Job
from scheduling.jobs.queries.submit_context import SubmitContext
from scheduling.jobs.validation_faults import faults_of
from tenants.errors import DomainError, FieldError
from tenants.roles import Permission
from tenants.viewers import Viewer
from tessera.isolation import NONE, SHARED_NETWORK
from tessera.reasons import ReasonCode

OPPORTUNISTIC_PRIORITY: Final = -1
MOST_PATHS_SHOWN: Final = 5


class InvalidJobError(DomainError):
    """The job is not valid; the error lists all faults."""

    code = "invalid-spec"
    title = sentence("invalid-job")


class UnsupportedFieldError(InvalidJobError):
    """The job uses fields that are not supported yet, and is valid otherwise."""

    code = "unsupported-field"
    title = sentence("unsupported-job")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedJob:
    """A specification that has passed all checks of a submit; it is not stored.

    Attributes:
        warnings: differences from the document, as texts.
        after: IDs of jobs that must succeed first.
    """

    spec: JobSpec
    demand: Demand
    virtual_cluster: VirtualCluster
    priority: int
    job_class: JobClass
    warnings: tuple[str, ...]
    after: tuple[int, ...]

    @property
    def guest_columns(self) -> dict[str, int | None]:
        """Columns of the job about its wish to be a guest; None if it must have its own device."""
        sharing = self.spec.sharing
        if sharing is None or not sharing.allowed:
            return {"guest_floor": None, "guest_wants": None}
        return {"guest_floor": sharing.memory, "guest_wants": sharing.wants}


def check_draft(
    *,
    document: Mapping[str, Any],
    viewer: Viewer,
    submit_context: SubmitContext,
    forgiven: frozenset[str] = frozenset(),
) -> ValidatedJob:
    """Validate a document.

    Args:
        document: the native specification.
        viewer: the submitter.
        submit_context: the submit context.
        forgiven: codes of tolerated faults: the job cannot start, but can be amended.

    Raises:
        InvalidJobError: the document, or a name in it, is not valid; the error lists all faults.
        ForbiddenError: the viewer may see the virtual cluster but not submit to it.
    """
    try:
        spec = parse(document)
    except InvalidJobSpecError as error:
        refusal = UnsupportedFieldError if error.code == "unsupported-field" else InvalidJobError
        raise refusal(errors=[from_spec_error(e) for e in error.errors]) from None
    return check_spec(spec=spec, viewer=viewer, submit_context=submit_context, forgiven=forgiven)


def check_spec(
    *,
    spec: JobSpec,
    viewer: Viewer,
    submit_context: SubmitContext,
    forgiven: frozenset[str] = frozenset(),
) -> ValidatedJob:
    """Validate a well-formed specification.

    Raises:
        InvalidJobError: a name in it is not valid; the error lists all faults.
        ForbiddenError: the viewer may see the virtual cluster but not submit to it.
    """
    virtual_cluster = _find_cluster(spec, submit_context)
    viewer.require(
        Permission.SUBMIT_JOBS,
        virtual_cluster.tenant_id,
        what=sentence("the-virtual-cluster", name=virtual_cluster.name),
    )
    _check_limit(virtual_cluster, submit_context)
    priority, job_class = _priority(spec, submit_context)
    spec = with_device_types(spec, submit_context)
    spec, storage_faults = resolved(
        spec, submit_context.storages, tenant=virtual_cluster.tenant_id, vc=virtual_cluster.pk
    )
    faults = [
        *faults_of(spec, virtual_cluster, job_class, submit_context),
        *map(from_spec_error, storage_faults),
    ]
    after = _dependencies(spec, viewer, faults)
    InvalidJobError.raise_if([fault for fault in faults if fault.code not in forgiven])
    return ValidatedJob(
        spec=spec,
        demand=demand(spec),
        virtual_cluster=virtual_cluster,
        priority=priority,
        job_class=job_class,
        warnings=_warnings(spec, virtual_cluster, submit_context),
        after=after,
    )


def with_device_types(spec: JobSpec, submit_context: SubmitContext) -> JobSpec:
    """Return the specification with the device types that its names mean; others are unchanged."""
    roles = {}
    for name, role in spec.roles.items():
        named = role.device_types
        if not named or (len(named) == 1 and submit_context.types.has(role.devices, *named)):
            continue
        found = dict.fromkeys(
            kind for given in named for kind in submit_context.types_named(given) or (given,)
        )
        types = tuple(found)[:MOST_TYPES]
        if types != named:
            roles[name] = replace(role, device_types=types)
    return replace(spec, roles={**spec.roles, **roles}) if roles else spec


def from_spec_error(error: SpecFieldError) -> FieldError:
    """Convert the core's field error to the public field names."""
    return FieldError(
        field=error.field,
        value=error.value_or_none,
        message=error.message,
        remedy=error.remedy,
        code=error.code,
    )


def _find_cluster(spec: JobSpec, submit_context: SubmitContext) -> VirtualCluster:
    found = submit_context.clusters.get(spec.virtual_cluster)
    if found is None:
        known = ", ".join(sorted(submit_context.clusters)[:8]) or sentence("none-ask-lead")
        raise InvalidJobError(
            errors=[
                FieldError(
                    field="virtual_cluster",
                    value=spec.virtual_cluster,
                    message=sentence("no-cluster-for-you"),
                    remedy=sentence("choices", names=known),
                    code=ReasonCode.UNKNOWN_VC,
                )
            ]
        )
    return found


def _check_limit(virtual_cluster: VirtualCluster, submit_context: SubmitContext) -> None:
    if not submit_context.may_use(virtual_cluster):
        raise InvalidJobError(
            sentence("you-are-limited-to-others"),
            field="virtual_cluster",
            value=virtual_cluster.name,
            remedy=sentence("use-your-cluster"),
        )


def _priority(spec: JobSpec, submit_context: SubmitContext) -> tuple[int, JobClass]:
    value: int
    if spec.priority is None:
        value = submit_context.default_priority
    elif isinstance(spec.priority, int):
        value = spec.priority
    elif spec.priority in submit_context.priorities:
        value = submit_context.priorities[spec.priority]
    elif _is_openpai_default(spec):
        value = submit_context.default_priority
    else:
        names = ", ".join(submit_context.priorities)
        raise InvalidJobError(
            sentence("no-priority-class", priority=repr(spec.priority)),
            field="priority",
            value=spec.priority,
            remedy=sentence("use-priority-or-class", names=names)
            if names
            else sentence("use-priority"),
        )
    if spec.job_class is JobClass.OPPORTUNISTIC or value < 0:
        return OPPORTUNISTIC_PRIORITY, JobClass.OPPORTUNISTIC
    return value, JobClass.GUARANTEED


def _is_openpai_default(spec: JobSpec) -> bool:
    """Return whether a job has the priority class that OpenPAI sets by default.

    Such documents are accepted even if the class does not exist.
    """
    compat = spec.compat
    return compat is not None and compat.format == "openpai" and spec.priority == "test"


def _dependencies(spec: JobSpec, viewer: Viewer, faults: list[FieldError]) -> tuple[int, ...]:
    if not spec.after:
        return ()
    visible = Job.objects.visible_to(viewer).filter(pk__in=spec.after)
    known = set(visible.values_list("id", flat=True))
    faults.extend(
        FieldError(
            field="after",
            value=job_id,
            message=sentence("no-such-job"),
            remedy=sentence("give-your-job"),
        )
        for job_id in spec.after
        if job_id not in known
    )
    return tuple(sorted(known))


def _warnings(
    spec: JobSpec, virtual_cluster: VirtualCluster, submit_context: SubmitContext
) -> tuple[str, ...]:
    with_image = sorted(name for name, role in spec.roles.items() if role.image)
    found: list[str] = []
    if with_image and submit_context.images_ignored:
        found.append(sentence("image-ignored", roles=", ".join(with_image)))
    is_plain = submit_context.images_ignored or len(with_image) < len(spec.roles)
    if is_plain:
        levels = {kind.isolation for kind in submit_context.nodes}
        if levels == {NONE}:
            found.append(sentence("not-isolated"))
        elif NONE in levels:
            found.append(sentence("maybe-not-isolated"))
    if not any(role.devices for role in spec.roles.values()):
        found += _pool_warnings(demand(spec))
    limits = {kind.enforces_limits for kind in submit_context.nodes}
    if limits == {False}:
        found.append(sentence("no-limits-anywhere"))
    elif False in limits:
        found.append(sentence("no-limits-somewhere"))
    found += _network_warnings(spec, submit_context, is_plain=is_plain)
    return (*found, *_path_warnings(virtual_cluster.tenant_id, submit_context))


def _pool_warnings(wanted: Demand) -> Iterator[str]:
    """Yield a warning if no node has enough CPUs and memory for jobs without devices."""
    sizes = sizes_of(stored_pools())
    if fitted(amounts_of(wanted), sizes, sizes, sizes.keys()) is not None:
        return
    most = max(sizes.values(), default=NOTHING)
    yield sentence("no-pool-for-it", cpus=most.cpus, memory=gibibytes(most.memory))


def _network_warnings(
    spec: JobSpec, submit_context: SubmitContext, *, is_plain: bool
) -> Iterator[str]:
    if spec.gang and sum(role.instances for role in spec.roles.values()) > 1:
        yield sentence("gang-network-shared")
        return
    networks = {
        kind.plain_network if is_plain else kind.container_network for kind in submit_context.nodes
    }
    # The node has not reported its networks yet, or has no container engine.
    networks.discard("")
    if networks == {SHARED_NETWORK}:
        yield sentence("network-shared")
    elif SHARED_NETWORK in networks:
        yield sentence("network-may-be-shared")


def _path_warnings(tenant_id: int, submit_context: SubmitContext) -> Iterator[str]:
    """Yield a warning about shared paths that jobs of the tenant see on some node."""
    visible = {
        (path.path, path.writable)
        for kind in submit_context.nodes
        for path in visible_to(kind.visible_paths, tenant_id)
    }
    if not visible:
        return
    shown = [f"{path}:rw" if writable else path for path, writable in sorted(visible)]
    paths = ", ".join(shown[:MOST_PATHS_SHOWN])
    if len(shown) > MOST_PATHS_SHOWN:
        yield sentence("visible-paths-and-more", paths=paths, n=len(shown) - MOST_PATHS_SHOWN)
    else:
        yield sentence("visible-paths", paths=paths)


def parts_of_draft(draft: ValidatedJob) -> tuple[ValidatedJob, ...]:
    """Return the draft itself for a gang, otherwise one draft per instance."""
    parts = split(draft.spec, uuid.uuid4().hex)
    if parts == (draft.spec,):
        return (draft,)
    warnings = (*draft.warnings, *_words(len(parts)))
    return tuple(
        replace(draft, spec=part, demand=demand(part), warnings=warnings) for part in parts
    )


def _words(count: int) -> tuple[str, ...]:
    if count == 1:
        return ()
    return (sentence("no-gang", count=count),)
