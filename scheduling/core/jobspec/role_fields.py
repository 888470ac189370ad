"""The fields of one role: readers, descriptions and forms."""

import re
from collections.abc import Mapping
from typing import Any, Final

from scheduling.core.device_types import MOST_TYPES
from scheduling.core.jobspec.containers import CONTAINER_FIELDS, read_container
from scheduling.core.jobspec.errors import DocumentPlace, RefusalError
from scheduling.core.jobspec.requirements import REQUIREMENT_FIELDS, read_requirements
from scheduling.core.jobspec.scalars import (
    KIB,
    read_bounded,
    read_command,
    read_cpus,
    read_integer,
    read_line,
    read_matching,
    read_memory,
)
from scheduling.core.jobspec.table import (
    AMOUNT,
    OBJECT,
    TEXTS,
    Field,
    choice,
    number_schema,
    read_list,
    read_map,
    read_object,
    text_schema,
)
from scheduling.core.jobspec.values import REDACTED, Completion, Processes, RoleSpec, Within
from scheduling.core.messages import sentence

MAX_INSTANCES: Final = 1000
_LONGEST_PIN: Final = 63

ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED: Final = frozenset(
    {
        "MASTER_ADDR",
        "MASTER_PORT",
        "WORLD_SIZE",
        "RANK",
        "NODE_RANK",
        "NNODES",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "AMD_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "ASCEND_VISIBLE_DEVICES",
        "ASCEND_RT_VISIBLE_DEVICES",
    }
)
_RESERVED_PREFIXES: Final = ("TESSERA_", "CUDA_MPS_", "NVIDIA_GPU_MEMORY_")
"""With the variables of MPS, a job could lift the limits of its share of a device."""
_PORT_LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_TYPE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,62}")
_IMAGE: Final = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?(?::[0-9]{1,5})?/)?"
    r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)


def read_role(value: object, place: DocumentPlace) -> RoleSpec | None:
    """Read one role; return None after an error about a missing command."""
    given = read_object(value, ROLE_FIELDS, place)
    _check_role(given, place)
    return RoleSpec(**given) if "command" in given else None


def _check_role(given: Mapping[str, Any], place: DocumentPlace) -> None:
    """Check the consistency of the fields of one role."""
    devices, within = given.get("devices", 1), given.get("within")
    if devices == 0:
        _check_companion(given, place)
    if within is Within.DEVICE and devices > 1:
        place.child("within").refuse(
            within.value,
            sentence("device-too-small", devices=devices),
            sentence("choose-wider-level"),
            "conflict",
        )
    if given.get("pinned_cell") is not None and given.get("device_types"):
        place.child("pinned_cell").refuse(
            given["pinned_cell"],
            sentence("pin-and-types"),
            sentence("keep-pinned-or-types"),
            "conflict",
        )
    instances = given.get("instances", 1)
    completion = given.get("completion", Completion())
    for name in ("min_failed", "min_succeeded"):
        count = getattr(completion, name)
        if count > instances:
            place.child("completion").child(name).refuse(
                count,
                sentence("more-than-instances", instances=instances),
                sentence("write-instances-or-never", instances=instances),
                "conflict",
            )
    _check_image_secret(given, place)
    if given.get("container") is not None and given.get("image") is None:
        place.child("container").refuse(
            None, sentence("needs-image"), sentence("give-image-or-omit-container"), "conflict"
        )
    for name in sorted(set(given.get("env", ())) & set(given.get("secrets", ()))):
        place.child("secrets").child(name, hidden=True).refuse(
            name, sentence("also-in-env"), sentence("remove-one"), "conflict"
        )


def _check_companion(given: Mapping[str, Any], place: DocumentPlace) -> None:
    """Note what a role without devices lacks, and what it cannot select."""
    for name in ("cpus", "memory"):
        if given.get(name) is None:
            place.child(name).refuse(
                None, sentence("missing"), sentence("size-companion"), "missing-field"
            )
    for name in ("processes", "device_types", "within", "pinned_cell", "requires"):
        if given.get(name) not in (None, (), Within.NODE, Processes.PER_INSTANCE):
            place.child(name).refuse(
                None, sentence("needs-devices"), sentence("omit", name=name), "conflict"
            )


def _check_image_secret(given: Mapping[str, Any], place: DocumentPlace) -> None:
    name = given.get("image_secret")
    if name is None:
        return
    secrets = given.get("secrets", {})
    if given.get("image") is None or name not in secrets:
        place.child("image_secret").refuse(
            name,
            sentence("not-secret-of-role"),
            sentence("write-image-and-login"),
            "conflict",
        )
    elif secrets[name] != REDACTED and not all(secrets[name].partition(":")):
        place.child("secrets").child(name, hidden=True).refuse(
            name, sentence("not-login"), sentence("write-login"), "malformed"
        )


def _device_types(value: object, place: DocumentPlace) -> tuple[str, ...]:
    remedy = sentence("write-device-type")
    found = read_list(
        [value] if isinstance(value, str) else value,
        place,
        most=MOST_TYPES,
        words="device types in order of preference",
        read=lambda item: read_matching(item, _TYPE_NAME, remedy),
    )
    return () if found == ("any",) else found


def _devices(value: object, _place: DocumentPlace) -> int:
    remedy = sentence("write-devices")
    return read_integer(value, 0, 256, remedy)


def _image(value: object, _place: DocumentPlace) -> str:
    remedy = sentence("write-image")
    return read_matching(read_bounded(value, 512, remedy), _IMAGE, remedy)


def _env(value: object, place: DocumentPlace) -> Mapping[str, str]:
    remedy = sentence("write-variable")
    return read_map(
        value,
        place,
        most=256,
        words="a map of names to strings",
        key=_variable,
        read=lambda item, _there: read_bounded(item, 32 * KIB, remedy),
    )


def _variable(name: str) -> None:
    read_matching(name, ENV_NAME, sentence("write-variable-name"))
    if name.startswith(_RESERVED_PREFIXES) or name in _RESERVED:
        raise RefusalError(
            sentence("set-by-scheduler", name=name),
            sentence("choose-another-name"),
            "reserved-name",
        )


def _secrets(value: object, place: DocumentPlace) -> Mapping[str, str]:
    return read_map(
        value, place, most=64, words="a map of names to strings", key=_variable, read=_secret
    )


def _secret(value: object, place: DocumentPlace) -> str:
    text = read_bounded(value, 64 * KIB, sentence("write-secret"))
    if text == REDACTED and not place.redacted:
        raise RefusalError(sentence("redacted"), sentence("give-secret-again"))
    return text


def _ports(value: object, place: DocumentPlace) -> Mapping[str, int]:
    remedy = sentence("write-port-label")
    return read_map(
        value,
        place,
        most=32,
        words="a map of labels to numbers of ports",
        key=lambda name: read_matching(name, _PORT_LABEL, remedy),
        read=lambda item, _there: read_integer(item, 1, 100),
    )


def _completion(value: object, place: DocumentPlace) -> Completion:
    return Completion(**read_object(value, COMPLETION_FIELDS, place))


def _minimum(value: object, _place: DocumentPlace) -> int:
    remedy = sentence("write-minimum", most=MAX_INSTANCES)
    if value == 0 and not isinstance(value, bool):
        raise RefusalError(sentence("zero-ends-at-start"), remedy, "out-of-range")
    return read_integer(value, -1, MAX_INSTANCES, remedy)


COMPLETION_FIELDS: Final = (
    Field(
        name="min_failed",
        type="number of instances, or -1",
        default="1",
        help="Number of failed instances of the role at which the job fails; -1: never.",
        read=_minimum,
        schema=number_schema(-1, MAX_INSTANCES),
    ),
    Field(
        name="min_succeeded",
        type="number of instances, or -1",
        default="-1",
        help="Number of succeeded instances at which the job succeeds; -1: all of them.",
        read=_minimum,
        schema=number_schema(-1, MAX_INSTANCES),
    ),
)

ROLE_FIELDS: Final = (
    Field(
        name="instances",
        type="number",
        default="1",
        help=f"Number of instances of the role, 1 to {MAX_INSTANCES}.",
        read=lambda value, _place: read_integer(value, 1, MAX_INSTANCES),
        schema=number_schema(1, MAX_INSTANCES),
    ),
    Field(
        name="devices",
        type="number",
        default="1",
        help="Devices of each instance, 0 to 256, all on one node. Instances without devices run "
        "on the nodes of the others, and use CPUs and memory of their share. A job without any "
        "device uses CPUs and memory that belong to no device.",
        read=_devices,
        schema=number_schema(0, 256),
    ),
    Field(
        name="processes",
        type="per-instance or per-device",
        default="per-instance",
        help="per-device: each instance runs the command once for each of its devices, with RANK, "
        "LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE as torchrun sets them. Requires python3.",
        read=lambda value, _place: Processes(choice(value, [one.value for one in Processes])),
        schema={"enum": [one.value for one in Processes]},
    ),
    Field(
        name="device_types",
        type="list of types",
        default="any",
        help="Acceptable device types, in order of preference.",
        read=_device_types,
        schema={
            "type": ["array", "string"],
            "items": {"type": "string"},
            "maxItems": MOST_TYPES,
        },
    ),
    Field(
        name="within",
        type="device, pcie, nvlink, numa, socket, node, rack or pool",
        default="node",
        help="Level of the cell that contains all devices of an instance; rack and pool: all "
        "instances. If a node does not have this level, the next larger level applies; nvlink "
        "requires nodes whose devices have NVLink.",
        read=lambda value, _place: Within(choice(value, [level.value for level in Within])),
        schema={"enum": [level.value for level in Within]},
    ),
    Field(
        name="pinned_cell",
        type="name of a pinned cell",
        default="none",
        help="Pinned cell of the virtual cluster in which all instances of the role run. Only for "
        "guaranteed jobs; cannot be combined with device_types.",
        read=lambda value, _place: read_line(value, _LONGEST_PIN),
        schema=text_schema(_LONGEST_PIN),
    ),
    Field(
        name="cpus",
        type="number",
        default="share of the devices",
        help="CPUs of each instance.",
        read=lambda value, _place: read_cpus(value),
        schema={"type": "number", "exclusiveMinimum": 0, "maximum": 4096},
    ),
    Field(
        name="memory",
        type="bytes, or a string such as 8GiB",
        default="share of the devices",
        help="Memory of each instance.",
        read=lambda value, _place: read_memory(value),
        schema=AMOUNT,
    ),
    Field(
        name="requires",
        type="object",
        default="see below",
        help="Requirements on the GPUs of the role and their driver.",
        read=read_requirements,
        schema=OBJECT,
        fields=REQUIREMENT_FIELDS,
    ),
    Field(
        name="command",
        type="text",
        required=True,
        help=sentence("help-command"),
        read=lambda value, _place: read_command(value),
        schema={"type": "string", "minLength": 1, "maxLength": 64 * KIB},
    ),
    Field(
        name="image",
        type="image name",
        default="none",
        help="Container image, on nodes with a container engine.",
        read=_image,
        schema=text_schema(512),
    ),
    Field(
        name="image_secret",
        type="name of a secret",
        default="none",
        help="Secret of the role with the login user:password for the registry of the image. Only "
        "the container engine reads it, not the job.",
        read=lambda value, _place: read_matching(value, ENV_NAME, sentence("write-secret-name")),
        schema=text_schema(128),
    ),
    Field(
        name="container",
        type="object",
        default="see below",
        help="Settings of the container of an image.",
        read=read_container,
        schema=OBJECT,
        fields=CONTAINER_FIELDS,
    ),
    Field(
        name="env",
        type="map of name to string",
        default="none",
        help="Environment variables.",
        read=_env,
        schema=TEXTS,
    ),
    Field(
        name="secrets",
        type="map of name to string",
        default="none",
        help="Secrets; the job reads each from a file in $TESSERA_JOB_SECRETS_DIR.",
        read=_secrets,
        schema={**TEXTS, "writeOnly": True},
        hidden=True,
    ),
    Field(
        name="ports",
        type="map of label to number",
        default="none",
        help="Number of ports of each instance by label; label http sets $TESSERA_JOB_PORTS_HTTP.",
        read=_ports,
        schema={"type": "object", "additionalProperties": number_schema(1, 100)},
    ),
    Field(
        name="completion",
        type="object",
        default="see below",
        help="Conditions under which instances of this role end the job.",
        read=_completion,
        schema=OBJECT,
        fields=COMPLETION_FIELDS,
    ),
)
