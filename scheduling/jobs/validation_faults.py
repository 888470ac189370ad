"""Faults of a well-formed job against the rules of its virtual cluster, each with its remedy."""

from scheduling.clusters.models import VirtualCluster
from scheduling.core.jobspec import JobClass, JobSpec, Within
from scheduling.core.jobspec.parsing import PIN_NEEDS_GUARANTEE, PIN_REMEDY
from scheduling.core.jobspec.sharing import conflict_of
from scheduling.core.messages import sentence
from scheduling.jobs.models import SourceArchive
from scheduling.jobs.queries.submit_context import SubmitContext
from scheduling.topology.current import current_topology
from tenants.errors import FieldError
from tenants.models import Membership
from tessera.reasons import ReasonCode


def faults_of(
    spec: JobSpec,
    virtual_cluster: VirtualCluster,
    job_class: JobClass,
    submit_context: SubmitContext,
) -> list[FieldError]:
    """Return all faults, such as unknown types, levels, pinned cells and archives."""
    return [
        *_type_faults(spec, submit_context),
        *_rack_faults(spec),
        *_network_faults(spec, submit_context),
        *_pin_faults(spec, virtual_cluster, job_class, submit_context),
        *_share_faults(spec, virtual_cluster, job_class, submit_context),
        *_sharing_faults(spec, job_class),
        *_archive_faults(spec, virtual_cluster),
        *_reader_faults(spec, virtual_cluster),
    ]


def _sharing_faults(spec: JobSpec, job_class: JobClass) -> list[FieldError]:
    """Return faults of device sharing fields that belong to the other class of jobs."""
    if spec.sharing is None:
        return []
    is_guaranteed = job_class is JobClass.GUARANTEED
    document = spec.sharing.to_json()
    faults = []
    for name in spec.sharing.fields_against(guaranteed=is_guaranteed):
        message, remedy = conflict_of(name)
        faults.append(
            FieldError(
                field=f"sharing.{name}",
                value=document[name],
                message=message,
                remedy=remedy,
                code="conflict",
            )
        )
    return faults


def _network_faults(spec: JobSpec, submit_context: SubmitContext) -> list[FieldError]:
    """Return faults of gangs with several instances that may not use the network of the nodes."""
    instances = sum(role.instances for role in spec.roles.values())
    if submit_context.host_network or not spec.gang or instances == 1:
        return []
    return [
        FieldError(
            field=f"roles.{name}.instances",
            value=role.instances,
            message=sentence("gang-needs-node-network"),
            remedy=sentence("use-one-instance"),
            code="host-network-not-allowed",
        )
        for name, role in spec.roles.items()
    ]


def _type_faults(spec: JobSpec, submit_context: SubmitContext) -> list[FieldError]:
    faults: list[FieldError] = []
    for name, role in spec.roles.items():
        if not role.devices:
            continue
        if len(role.device_types) < 2 and submit_context.types.has(
            role.devices, *role.device_types
        ):
            continue
        known = ", ".join(sorted(submit_context.types)) or sentence("none-yet-add-node")
        unknown = [t for t in role.device_types if t not in submit_context.types]
        faults.extend(
            FieldError(
                field=f"roles.{name}.device_types",
                value=device_type,
                message=sentence("no-such-type", device_type=device_type),
                remedy=sentence("choices", names=known),
                code=ReasonCode.UNKNOWN_TYPE,
            )
            for device_type in unknown
        )
        usable = [
            n
            for t, n in submit_context.types.items()
            if not role.device_types or t in role.device_types
        ]
        if not unknown and usable and role.devices > max(usable):
            faults.append(
                FieldError(
                    field=f"roles.{name}.devices",
                    value=role.devices,
                    message=sentence("instance-larger-than-node", most=max(usable)),
                    remedy=sentence("use-more-instances", most=max(usable)),
                    code=ReasonCode.NO_CELL_OF_LEVEL,
                )
            )
    return faults


def _rack_faults(spec: JobSpec) -> list[FieldError]:
    """Return faults of limits to racks and pools if nodes are in none."""
    asking = {name: role.within for name, role in spec.roles.items() if role.within.is_above_node}
    if not asking:
        return []
    known = current_topology().levels_of_nodes
    if known.issuperset(asking.values()):
        return []
    there = _levels_in_nodes()
    return [
        FieldError(
            field=f"roles.{name}.within",
            value=within.value,
            message=sentence("no-racks" if within is Within.RACK else "no-pools", there=there),
            remedy=sentence("use-level-node"),
            code=ReasonCode.NO_CELL_OF_LEVEL,
        )
        for name, within in asking.items()
        if within not in known
    ]


def _pin_faults(
    spec: JobSpec,
    virtual_cluster: VirtualCluster,
    job_class: JobClass,
    submit_context: SubmitContext,
) -> list[FieldError]:
    """Return faults of unknown pinned cells, and of pinned cells in opportunistic jobs."""
    known = submit_context.pinned.get(virtual_cluster.pk, ())
    faults = []
    for name, role in spec.roles.items():
        if role.pinned_cell is None:
            continue
        message, remedy = f"It {PIN_NEEDS_GUARANTEE}", PIN_REMEDY
        if role.pinned_cell not in known:
            message = sentence("no-such-pinned-cell", name=virtual_cluster.name)
            remedy = (
                sentence("choices", names=", ".join(known)) if known else sentence("no-pins-yet")
            )
        elif job_class is JobClass.GUARANTEED:
            continue
        faults.append(
            FieldError(
                field=f"roles.{name}.pinned_cell",
                value=role.pinned_cell,
                message=message,
                remedy=remedy,
            )
        )
    return faults


def _levels_in_nodes() -> str:
    """Return the levels that can contain an instance, as a text."""
    levels = {
        level.level: level.number
        for chain in current_topology().chains.values()
        for level in chain.levels[: chain.node_level]
    }
    words = ", ".join(sorted(levels, key=levels.__getitem__))
    return f"levels that can contain an instance here: {words}" if words else "no cells yet"


def _share_faults(
    spec: JobSpec,
    virtual_cluster: VirtualCluster,
    job_class: JobClass,
    submit_context: SubmitContext,
) -> list[FieldError]:
    if job_class is JobClass.OPPORTUNISTIC or virtual_cluster.pk in submit_context.guaranteed:
        return []
    if all(role.pinned_cell is not None or not role.devices for role in spec.roles.values()):
        return []  # no guarantee contains the CPUs of instances without devices
    return [
        FieldError(
            field="class",
            value=job_class.value,
            message=sentence("nothing-guaranteed", name=virtual_cluster.name),
            remedy=sentence("use-opportunistic"),
            code=ReasonCode.EXCEEDS_VC_MAX,
        )
    ]


def _archive_faults(spec: JobSpec, virtual_cluster: VirtualCluster) -> list[FieldError]:
    digest = getattr(spec.source, "digest", None)
    if digest is None:
        return []
    known = SourceArchive.objects.unscoped().filter(
        tenant_id=virtual_cluster.tenant_id, sha256=digest
    )
    if known.exists():
        return []
    return [
        FieldError(
            field="source.archive",
            value=digest,
            message=sentence("archive-not-uploaded"),
            remedy=sentence("upload-archive-first"),
        )
    ]


def _reader_faults(spec: JobSpec, virtual_cluster: VirtualCluster) -> list[FieldError]:
    """Return faults of mail readers who may not see the job."""
    names = spec.notify.to if spec.notify else ()
    if not names:
        return []
    members = Membership.objects.unscoped().filter(
        tenant=virtual_cluster.tenant_id, user__is_active=True, user__username__in=names
    )
    known = set(members.values_list("user__username", flat=True))
    return [
        FieldError(
            field="notify.to",
            value=name,
            message=sentence("no-such-reader"),
            remedy=sentence("name-members"),
        )
        for name in names
        if name not in known
    ]
