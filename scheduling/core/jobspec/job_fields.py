"""The fields of a job: reader, description and form of each."""

import re
from collections.abc import Mapping
from typing import Final

from scheduling.core.jobspec.elastic_fields import ELASTIC_FIELDS, read_elastic
from scheduling.core.jobspec.errors import DocumentPlace, RefusalError
from scheduling.core.jobspec.parallel import PARALLEL_FIELDS, read_parallel
from scheduling.core.jobspec.retrying import RETRY_FIELDS, read_retries
from scheduling.core.jobspec.role_fields import MAX_INSTANCES, ROLE_FIELDS, read_role
from scheduling.core.jobspec.scalars import (
    DAY,
    read_bool,
    read_duration,
    read_instant,
    read_integer,
    read_line,
    read_matching,
    read_note,
)
from scheduling.core.jobspec.sharing import SHARING_FIELDS, read_sharing
from scheduling.core.jobspec.source import SOURCE_FIELDS, read_source
from scheduling.core.jobspec.storage_fields import STORAGE_FIELD, read_storage_name
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
from scheduling.core.jobspec.values import SCHEMA_VERSION, Compat, JobClass, JobInstance, RoleSpec
from scheduling.core.jobspec.watching import WATCH_FIELDS
from scheduling.core.messages import sentence
from tessera.storage import SYSTEM_DIRECTORIES

COMPAT_FORMATS: Final = ("openpai", "slurm", "dstack", "skypilot")
MAX_ROLES: Final = 32
ROLE_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")
_FOREIGN_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
_VC_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_PATH: Final = re.compile(r"/[A-Za-z0-9._/@+-]*")
LONGEST_PATH: Final = 200
_CLASS_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,31}")
_LABEL_KEY: Final = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)


def _schema_version(value: object, _place: DocumentPlace) -> int:
    return read_integer(
        value, SCHEMA_VERSION, SCHEMA_VERSION, sentence("write-version", version=SCHEMA_VERSION)
    )


def _priority(value: object, _place: DocumentPlace) -> str | int:
    remedy = sentence("write-priority")
    if isinstance(value, str):
        return read_matching(value, _CLASS_NAME, remedy)
    return read_integer(value, 0, 1000, remedy)


def _labels(value: object, place: DocumentPlace) -> Mapping[str, str]:
    remedy = sentence("write-label-key")
    return read_map(
        value,
        place,
        most=64,
        words="a map of label keys to strings",
        key=lambda name: read_matching(name, _LABEL_KEY, remedy),
        read=lambda item, _there: read_line(item, 63, least=0),
    )


def _roles(value: object, place: DocumentPlace) -> Mapping[str, RoleSpec | None]:
    remedy = sentence("write-role-name")
    found = read_map(
        value,
        place,
        most=MAX_ROLES,
        words="a map of role names to roles",
        key=lambda name: read_matching(name, ROLE_NAME, remedy),
        read=read_role,
    )
    if not value:
        raise RefusalError(sentence("no-role"), sentence("give-role"), "missing-field")
    total = sum(role.instances for role in found.values() if role)
    if total > MAX_INSTANCES:
        raise RefusalError(
            sentence("too-many-instances", total=total),
            sentence("use-fewer-instances", most=MAX_INSTANCES),
            "out-of-range",
        )
    return found


def _part(value: object, place: DocumentPlace) -> JobInstance | None:
    faults = len(place.errors)
    given = read_object(value, PART_FIELDS, place)
    return JobInstance(**given) if len(place.errors) == faults else None


def _after(value: object, place: DocumentPlace) -> tuple[int, ...]:
    remedy = sentence("write-job-id")
    return read_list(
        value,
        place,
        most=100,
        words="job IDs, such as [17, 18]",
        read=lambda item: read_integer(item, 1, 2**63 - 1, remedy),
    )


def _compat(value: object, place: DocumentPlace) -> Compat | None:
    given = read_object(value, COMPAT_FIELDS, place)
    return Compat(**given) if "format" in given else None


def _role_names(value: object, place: DocumentPlace) -> Mapping[str, str]:
    remedy = sentence("write-foreign-role")
    return read_map(
        value,
        place,
        most=MAX_ROLES,
        words="a map of role names to strings",
        key=lambda name: read_matching(name, ROLE_NAME, sentence("write-role")),
        read=lambda item, _there: read_matching(item, _FOREIGN_NAME, remedy),
    )


def _shared_directory(value: object, place: DocumentPlace) -> str:
    remedy = sentence("write-path")
    if isinstance(value, str) and "/" not in value:
        return read_storage_name(value)
    text = read_matching(value, _PATH, remedy)
    if len(text) > LONGEST_PATH or ".." in text.split("/"):
        raise RefusalError(sentence("not-path"), remedy)
    path = text.rstrip("/") or "/"
    steps = [step for step in path.split("/") if step]
    is_stored = place.redacted  # jobs that were accepted before this rule keep their path
    is_reserved = (
        not steps or steps[0] in SYSTEM_DIRECTORIES or any(step[0] == "." for step in steps)
    )
    if is_reserved and not is_stored:
        raise RefusalError(sentence("system-directory"), remedy)
    return path


def _never(value: object, _place: DocumentPlace) -> object:
    """Refuse an unsupported field; never called, since the loop refuses the field before."""
    return value


COMPAT_FIELDS: Final = (
    Field(
        name="format",
        type="openpai, slurm, dstack or skypilot",
        required=True,
        help=sentence("help-compat-format"),
        read=lambda value, _place: choice(value, COMPAT_FORMATS),
        schema={"enum": list(COMPAT_FORMATS)},
    ),
    Field(
        name="role_names",
        type="map of role to string",
        default="none",
        help="Original names of renamed roles, used in the names of variables.",
        read=_role_names,
        schema=TEXTS,
    ),
)

PART_FIELDS: Final = (
    Field(
        name="rank",
        type="number",
        default="0",
        help="Index of the instance in its role, from 0.",
        read=lambda value, _place: read_integer(value, 0, MAX_INSTANCES - 1),
        schema=number_schema(0, MAX_INSTANCES - 1),
    ),
    Field(
        name="size",
        type="number",
        default="1",
        help="Number of instances with which the role was submitted.",
        read=lambda value, _place: read_integer(value, 1, MAX_INSTANCES),
        schema=number_schema(1, MAX_INSTANCES),
    ),
    Field(
        name="group",
        type="text",
        default="none",
        help="Common ID of all instances that were submitted together.",
        read=lambda value, _place: read_line(value, 63, least=0),
        schema=text_schema(63),
    ),
)

JOB_FIELDS: Final = (
    Field(
        name="schema_version",
        type="1",
        default="1",
        help="Version of this format.",
        read=_schema_version,
        schema={"enum": [SCHEMA_VERSION]},
    ),
    Field(
        name="name",
        type="text",
        required=True,
        help=sentence("help-name"),
        read=lambda value, _place: read_line(value, 63),
        schema={"type": "string", "minLength": 1, "maxLength": 63},
    ),
    Field(
        name="note",
        type="text",
        default="none",
        help="Free text about the job, at most 500 characters.",
        read=lambda value, _place: read_note(value),
        schema=text_schema(500),
    ),
    Field(
        name="labels",
        type="map of key to string",
        default="none",
        help="Labels for filters, such as team: vision; at most 64.",
        read=_labels,
        schema=TEXTS,
    ),
    Field(
        name="virtual_cluster",
        type="name",
        required=True,
        help=sentence("help-virtual-cluster"),
        read=lambda value, _place: read_matching(
            value, _VC_NAME, sentence("write-virtual-cluster")
        ),
        schema=text_schema(63, pattern=f"^{_VC_NAME.pattern}$"),
    ),
    Field(
        name="priority",
        type="class name, or 0 to 1000",
        default="the default class",
        help="Order of jobs in the virtual cluster, and which jobs may preempt others there.",
        read=_priority,
        schema={"type": ["string", "integer"], "minimum": 0, "maximum": 1000},
    ),
    Field(
        name="class",
        type="guaranteed or opportunistic",
        default="guaranteed",
        help="Opportunistic jobs use idle devices, and are preempted when the owner needs them.",
        read=lambda value, _place: JobClass(choice(value, [kind.value for kind in JobClass])),
        schema={"enum": [kind.value for kind in JobClass]},
    ),
    Field(
        name="roles",
        type="object",
        required=True,
        help=sentence("help-roles"),
        read=_roles,
        schema=OBJECT,
        fields=ROLE_FIELDS,
        keyed_by="<name>",
    ),
    Field(
        name="gang",
        type="true or false",
        default="true",
        help="true: all instances start together; false: each instance is a separate job.",
        read=lambda value, _place: read_bool(value),
        schema={"type": "boolean"},
    ),
    Field(
        name="part",
        type="object",
        default="none",
        help="Instance of a job with gang: false. Tessera writes this field at submit.",
        read=_part,
        schema=OBJECT,
        fields=PART_FIELDS,
    ),
    Field(
        name="max_duration",
        type="seconds, or a string such as 2h",
        default="none",
        help="Maximum duration of an attempt; then it ends with failure class timeout.",
        read=lambda value, _place: read_duration(value, 1, 366 * DAY),
        schema=AMOUNT,
    ),
    Field(
        name="not_before",
        type="ISO 8601 with offset",
        default="immediately",
        help="Earliest start.",
        read=lambda value, _place: read_instant(value),
        schema={"type": "string", "format": "date-time"},
    ),
    Field(
        name="held",
        type="true or false",
        default="false",
        help="Hold the job: it stays queued until it is released.",
        read=lambda value, _place: read_bool(value),
        schema={"type": "boolean"},
    ),
    Field(
        name="after",
        type="list of job IDs",
        default="none",
        help="Jobs that must succeed before this job starts.",
        read=_after,
        schema={"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 100},
    ),
    Field(
        name="retries",
        type="object",
        default="see below",
        help="Maximum number of retries for each failure class.",
        read=read_retries,
        schema=OBJECT,
        fields=RETRY_FIELDS,
    ),
    Field(
        name="grace_seconds",
        type="seconds, or a string such as 2m",
        default="30",
        help="Grace period between the notice to leave and SIGKILL, at most 1h.",
        read=lambda value, _place: read_duration(value, 0, 3600),
        schema=AMOUNT,
    ),
    Field(
        name="source",
        type="object, or none",
        default="none",
        help="Code that Tessera fetches into the working directory before the command starts.",
        read=read_source,
        schema={"type": ["object", "string"]},
        fields=SOURCE_FIELDS,
    ),
    Field(
        name="compat",
        type="object",
        default="none",
        help="Also follow the conventions of another system; importers write this field.",
        read=_compat,
        schema=OBJECT,
        fields=COMPAT_FIELDS,
    ),
    Field(
        name="elastic",
        type="object",
        default="none",
        help="Other sizes that the policy of the virtual cluster may give to a job of one role. "
        "When its size changes, the job gets a notice and restarts from its checkpoint with "
        "another WORLD_SIZE or number of devices.",
        read=read_elastic,
        schema=OBJECT,
        fields=ELASTIC_FIELDS,
    ),
    Field(
        name="parallel",
        type="object",
        default="none",
        help="Hybrid parallelism: pipeline, data and tensor parallelism of a training with "
        "tessera.train.Hybrid.",
        read=read_parallel,
        schema=OBJECT,
        fields=PARALLEL_FIELDS,
    ),
    Field(
        name="checkpoint_dir",
        type="path, or name of a storage",
        default="as in the virtual cluster, else on the node",
        help="Storage for checkpoints, or directory that all nodes share and that an admin has "
        "declared for checkpoints. Each job has its own directory in it. On the node, the portal "
        "copies checkpoints to the next node.",
        read=_shared_directory,
        schema=text_schema(LONGEST_PATH),
    ),
    STORAGE_FIELD,
    Field(
        name="deadline",
        type="ISO 8601 with offset",
        default="none",
        help="Time by which the job should end. Policies with deadlines may refuse the job.",
        read=lambda value, _place: read_instant(value),
        schema={"type": "string", "format": "date-time"},
    ),
    *WATCH_FIELDS,
    Field(
        name="sharing",
        type="object",
        default="as in the virtual cluster",
        help="Guests on the devices of this job, or whether it may itself be a guest (see Device "
        "sharing).",
        read=read_sharing,
        schema=OBJECT,
        fields=SHARING_FIELDS,
    ),
    *(
        Field(
            name=name,
            type=kind,
            default="none",
            help=words,
            read=_never,
            schema={},
            unsupported=True,
        )
        for name, kind, words in (
            ("model", "object", "Input of the planner for hybrid parallelism."),
        )
    ),
)
