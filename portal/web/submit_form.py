"""The form pane as values: every field with its text, its choices, and its faults."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext

from portal.i18n import Name, gettext_lazy
from portal.web.submit_check import (
    NEW_NAME,
    Fault,
    SubmitCheck,
    secrets_in,
    secrets_of,
    written_out,
)
from portal.web.submit_fields import LABELS, posted_values, roles_in, roles_of, value_at, values_of
from scheduling.core.jobspec import (
    ContainerUser,
    ElasticMode,
    Ipc,
    JobClass,
    PlanChoice,
    Processes,
    ProfileUse,
    Within,
)
from scheduling.core.jobspec.watching import NO_POLICY
from scheduling.core.watching.idleness import IdleScope
from scheduling.jobs.queries.submit_context import SubmitContext


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectOption:
    """One value of a choice."""

    value: str
    text: str
    on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One field.

    Attributes:
        name: the path in the document.
        label: the label above it.
        value: the text, or whether the box is ticked.
        faults: faults of this field.
        options: valid choices, if known.
    """

    name: str
    label: str
    value: str | bool
    faults: tuple[Fault, ...]
    options: tuple[SelectOption, ...] = ()

    @property
    def id(self) -> str:
        """The element's id."""
        return f"f-{self.name.replace('.', '-')}"

    @property
    def described_by(self) -> str:
        """The ids of the hint and of the faults."""
        return f"{self.id}-hint error-{self.name}" if self.faults else f"{self.id}-hint"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleForm:
    """The fields of one role.

    Attributes:
        fields: fields by their keys below the role, with underscores for dots.
        secrets: fields of the secrets; their values are never shown.
        new_secret: the field for the name of one more.
        has_more: a collapsed field has a value or a fault.
    """

    name: str
    fields: Mapping[str, Input]
    secrets: tuple[Input, ...]
    new_secret: str
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitForm:
    """The form.

    Attributes:
        fields: fields of the job by name, with underscores for dots.
        others: faults that no field of the form shows.
        pins: the pinned cells that roles can choose; without any, no role shows a choice.
        is_kept: the text cannot be read, so the form shows the last readable one.
        has_more: a collapsed field has a value or a fault.
    """

    fields: Mapping[str, Input]
    roles: tuple[RoleForm, ...]
    others: tuple[Fault, ...]
    device_types: tuple[str, ...]
    pins: tuple[str, ...]
    is_kept: bool
    has_more: bool
    count: int


_MODES = (
    ("", gettext_lazy("none")),
    (ElasticMode.LOGICAL_WORKERS.value, gettext_lazy("logical workers")),
    (ElasticMode.ADAPTIVE_BATCH.value, gettext_lazy("adaptive batch")),
    (ElasticMode.HYBRID.value, gettext_lazy("hybrid parallelism")),
)
_BITS = (
    ("", gettext_lazy("default")),
    ("D0", gettext_lazy("D0: same devices")),
    ("D1", gettext_lazy("D1: any number of devices")),
    ("D2", gettext_lazy("D2: any device types")),
)
_TOGETHER = (
    ("", gettext_lazy("start together (gang)")),
    ("false", gettext_lazy("start independently, one job each")),
)
_IDLING = (
    ("", gettext_lazy("default of the virtual cluster")),
    (NO_POLICY, gettext_lazy("none")),
)
_IDLE_DEVICES = (
    ("", gettext_lazy("all devices of the job")),
    (IdleScope.ANY.value, gettext_lazy("any device of the job")),
)
_USERS = (
    ("", gettext_lazy("node: the account of other jobs")),
    (ContainerUser.IMAGE.value, gettext_lazy("image: the image's own user")),
)
_PROCESSES = (
    ("", gettext_lazy("one per instance")),
    (Processes.PER_DEVICE.value, gettext_lazy("one per device, as with torchrun")),
)
_IPC = (
    ("", gettext_lazy("private")),
    (Ipc.HOST.value, gettext_lazy("host: the namespace of the node")),
)
_MORE_OF_ROLE = (
    "processes",
    *("ports", "image_secret", "completion_min_failed", "completion_min_succeeded"),
    *("container_user", "container_ipc", "container_shm", "container_workdir"),
    *("container_entrypoint", "container_rdma"),
)
_SCHEDULES = (
    ("", gettext_lazy("1f1b: forward and backward passes in turn")),
    ("gpipe", gettext_lazy("gpipe: all forward passes first")),
)
_PLANS = (
    ("", gettext_lazy("auto: chosen at each start")),
    (PlanChoice.FIXED.value, gettext_lazy("fixed: the stages below")),
)
_PROFILES = (
    ("", gettext_lazy("automatic: one small job per device type")),
    (ProfileUse.NONE.value, gettext_lazy("none")),
    (ProfileUse.ONLY.value, gettext_lazy("only: this job measures the model and ends")),
)
_BATCH_PROFILES = (
    ("", gettext_lazy("automatic: one small job per device type")),
    (ProfileUse.NONE.value, gettext_lazy("none")),
    (ProfileUse.ONLY.value, gettext_lazy("only: this job measures step times and ends")),
)
_FIRST = ("name", "virtual_cluster", "priority", "class")


def form_of(
    checked: SubmitCheck,
    *,
    clusters: Sequence[str],
    submit_context: SubmitContext,
    device_types: Sequence[str],
    beyond_nodes: Collection[Within] = (),
    pins: Sequence[str] = (),
    posted: Mapping[str, str] | None = None,
) -> SubmitForm:
    """Fill the form from a checked text; unchanged while the text cannot be read.

    Args:
        checked: the text and its faults.
        clusters: virtual clusters open to the viewer.
        submit_context: submit context, with the priority classes.
        device_types: types in the cluster.
        beyond_nodes: levels of several nodes that the cluster has.
        pins: result of ``pins_offered``.
        posted: posted texts of the form, if any.
    """
    roles, values, kept = _read(checked, posted)
    choices = _offered(values, clusters, submit_context, beyond_nodes, pins=pins)
    faults = _by_field(checked.faults)
    fields = {
        name: _input(name, values[name], faults, choices)
        for name in values
        if not name.startswith("roles.")
    }
    secrets = _secrets(checked, kept, faults)
    shown = values.keys() | {secret.name for secret in secrets}
    return SubmitForm(
        fields={name.replace(".", "_").replace("-", "_"): found for name, found in fields.items()},
        roles=tuple(_role(name, values, faults, choices, secrets) for name in roles),
        others=tuple(fault for fault in checked.faults if fault.field not in shown),
        device_types=tuple(device_types),
        pins=tuple(pins),
        is_kept=kept is not None and bool(checked.typed.text.strip()),
        has_more=any(
            found.value or found.faults for name, found in fields.items() if name not in _FIRST
        ),
        count=len(roles),
    )


def _read(
    checked: SubmitCheck, posted: Mapping[str, str] | None
) -> tuple[Sequence[str], Mapping[str, str | bool], Mapping[str, str] | None]:
    """Return roles and values of the text, or of the posted form if the text has none.

    Posted texts have precedence if the form was edited last.
    """
    document = checked.typed.document
    roles = roles_in(posted) if posted and document is None else ()
    if posted and roles:
        return roles, posted_values(posted, roles), posted
    roles = roles_of(document)
    return roles, values_of(document, roles), None


def _offered(
    values: Mapping[str, str | bool],
    clusters: Sequence[str],
    submit_context: SubmitContext,
    beyond_nodes: Collection[Within],
    *,
    pins: Sequence[str],
) -> "Choices":
    """Return the choices by field."""
    levels = [e.value for e in Within if not e.is_above_node or e in beyond_nodes]
    choices = {
        "virtual_cluster": _choices(((name, Name(name)) for name in clusters), values),
        "priority": _priority_choices(submit_context),
        "processes": _PROCESSES,
        "container.user": _USERS,
        "container.ipc": _IPC,
        "elastic.mode": _MODES,
        "elastic.determinism": _BITS,
        "elastic.profile": _BATCH_PROFILES,
        "parallel.schedule": _SCHEDULES,
        "parallel.plan": _PLANS,
        "parallel.profile": _PROFILES,
        "idle_policy": _IDLING,
        "idle_policy.devices": _IDLE_DEVICES,
        "gang": _TOGETHER,
        "class": tuple((each.value, each.value.capitalize()) for each in JobClass),
        "within": tuple((level, level) for level in levels),
    }
    if pins:
        choices["pinned_cell"] = (("", gettext("none")), *((name, Name(name)) for name in pins))
    return choices


def pins_offered(document: object, submit_context: SubmitContext) -> tuple[str, ...]:
    """Return the pinned cells of the document's virtual cluster, and others named by its roles."""
    known = submit_context.pinned_in(value_at(document, ("virtual_cluster",)))
    roles = roles_of(document)
    values = (value_at(document, ("roles", role, "pinned_cell")) for role in roles)
    named = {value for value in values if isinstance(value, str) and value}
    return (*known, *sorted(named.difference(known)))


Choices = Mapping[str, tuple[tuple[str, str], ...]]


def _choices(
    pairs: Iterable[tuple[str, str]], values: Mapping[str, str | bool]
) -> tuple[tuple[str, str], ...]:
    found = tuple(pairs)
    return found if values["virtual_cluster"] else (("", gettext("Select one")), *found)


def _priority_choices(submit_context: SubmitContext) -> tuple[tuple[str, str], ...]:
    default = gettext("default")
    if submit_context.default_class:
        default = gettext("default (%(name)s, %(value)s)") % {
            "name": submit_context.default_class,
            "value": submit_context.default_priority,
        }
    listed = submit_context.priorities.items()
    return (
        ("", default),
        *((name, Name(f"{name} ({value})")) for name, value in listed if value >= 0),
    )


def _role(
    role: str,
    values: Mapping[str, str | bool],
    faults: Mapping[str, tuple[Fault, ...]],
    choices: Choices,
    secrets: Iterable[Input],
) -> RoleForm:
    prefix = f"roles.{role}."
    fields = {
        name.removeprefix(prefix).replace(".", "_"): _input(name, values[name], faults, choices)
        for name in values
        if name.startswith(prefix)
    }
    kept = tuple(secret for secret in secrets if secret.name.startswith(f"{prefix}secrets."))
    folded = (*kept, *(fields[key] for key in _MORE_OF_ROLE))
    return RoleForm(
        name=role,
        fields=fields,
        secrets=kept,
        new_secret=f"{NEW_NAME}{role}",
        has_more=bool(kept) or any(found.value or found.faults for found in folded),
    )


def _secrets(
    checked: SubmitCheck, posted: Mapping[str, str] | None, faults: Mapping[str, tuple[Fault, ...]]
) -> tuple[Input, ...]:
    """Return a field for each secret; its value is whether the YAML has one, never the secret."""
    document = checked.typed.document
    written = written_out(document)
    return tuple(
        Input(name=name, label=keys[-1], value=name in written, faults=faults.get(name, ()))
        for name, keys in (secrets_in(posted) if posted else secrets_of(document)).items()
    )


def _input(
    name: str,
    value: str | bool,
    faults: Mapping[str, tuple[Fault, ...]],
    choices: Choices,
) -> Input:
    parts = name.split(".")
    key = ".".join(parts[2:]) if parts[0] == "roles" else name
    return Input(
        name=name,
        label=LABELS[key],
        value=value,
        faults=faults.get(name, ()),
        options=_options(choices.get(key, ()), str(value)),
    )


def _options(pairs: Sequence[tuple[str, str]], chosen: str) -> tuple[SelectOption, ...]:
    """Return the options; an unknown current value is added as its own option."""
    known = {value for value, _ in pairs}
    extra = () if not pairs or chosen in known else ((chosen, Name(chosen)),)
    return tuple(
        SelectOption(value=value, text=text, on=value == chosen)
        for value, text in (*pairs, *extra)
    )


def _by_field(faults: Iterable[Fault]) -> dict[str, tuple[Fault, ...]]:
    found: dict[str, tuple[Fault, ...]] = {}
    for fault in faults:
        found[fault.field] = (*found.get(fault.field, ()), fault)
    return found
