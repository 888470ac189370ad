"""The job specification, schema version 1, and its validation.

``parse`` turns a document into a frozen ``JobSpec`` or raises ``InvalidJobSpecError`` with all
errors. ``demand`` returns its resource demand. ``SPEC_FIELDS`` and ``json_schema`` describe the
fields for docs, forms and OpenAPI.
"""

from scheduling.core.jobspec.containers import NO_SETTINGS, ContainerSettings, ContainerUser, Ipc
from scheduling.core.jobspec.demands import Demand, MemberDemand, demand
from scheduling.core.jobspec.elastic import Elastic, ElasticMode, ProfileUse
from scheduling.core.jobspec.errors import FieldError, InvalidDocumentError, InvalidJobSpecError
from scheduling.core.jobspec.parallel import Parallel, PlanChoice, stored_parallel
from scheduling.core.jobspec.parsing import MAX_SPEC_BYTES, parse, parse_stored
from scheduling.core.jobspec.parts import part_name, split
from scheduling.core.jobspec.requirements import NO_REQUIREMENTS, Requirements, strictest
from scheduling.core.jobspec.schema import SPEC_FIELDS, FieldInfo, fields_table, json_schema
from scheduling.core.jobspec.values import (
    REDACTED,
    SCHEMA_VERSION,
    ArchiveSource,
    Compat,
    Completion,
    GitSource,
    JobClass,
    JobInstance,
    JobSpec,
    Processes,
    Retries,
    RoleSpec,
    StorageRequest,
    Within,
)

__all__ = [
    "MAX_SPEC_BYTES",
    "NO_REQUIREMENTS",
    "NO_SETTINGS",
    "REDACTED",
    "SCHEMA_VERSION",
    "SPEC_FIELDS",
    "ArchiveSource",
    "Compat",
    "Completion",
    "ContainerSettings",
    "ContainerUser",
    "Demand",
    "Elastic",
    "ElasticMode",
    "FieldError",
    "FieldInfo",
    "GitSource",
    "InvalidDocumentError",
    "InvalidJobSpecError",
    "Ipc",
    "JobClass",
    "JobInstance",
    "JobSpec",
    "MemberDemand",
    "Parallel",
    "PlanChoice",
    "Processes",
    "ProfileUse",
    "Requirements",
    "Retries",
    "RoleSpec",
    "StorageRequest",
    "Within",
    "demand",
    "fields_table",
    "json_schema",
    "parse",
    "parse_stored",
    "part_name",
    "split",
    "stored_parallel",
    "strictest",
]
