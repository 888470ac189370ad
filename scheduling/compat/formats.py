"""The registry of importers: by name, and by what a document looks like."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from scheduling.compat.context import Context
from scheduling.compat.dstack.job import DSTACK
from scheduling.compat.hived.messages import TABLE as HIVED_MESSAGES
from scheduling.compat.importer import Gang, Importer, Member
from scheduling.compat.messages import Messages
from scheduling.compat.openpai.job import OPENPAI
from scheduling.compat.result import Imported
from scheduling.compat.skypilot.job import SKYPILOT
from scheduling.compat.slurm.job import SBATCH

IMPORTERS: Final[Mapping[str, Importer]] = MappingProxyType(
    {importer.name: importer for importer in (OPENPAI, SBATCH, DSTACK, SKYPILOT)}
)
"""All job formats by name; of two that recognise a document the first is taken."""

TITLES: Final[Mapping[str, str]] = MappingProxyType(
    {name: importer.title for name, importer in IMPORTERS.items()}
)
"""Titles of job formats by name."""

RULE_KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {kind: label for importer in IMPORTERS.values() for kind, label in importer.rule_kinds.items()}
)
"""Kinds of names that import rules may map, with their labels."""

TABLE: Final = Messages(HIVED_MESSAGES, *(each.messages for each in IMPORTERS.values()))
"""The messages of all importers."""

_BY_COMPAT_FORMAT: Final = {
    importer.compat_format: importer for importer in IMPORTERS.values() if importer.compat_format
}
_NAMES: Final = {
    alias: name for name, importer in IMPORTERS.items() for alias in (name, *importer.aliases)
}


def format_named(name: str) -> str:
    """The format of a name or an alias; empty if there is none."""
    return _NAMES.get(name, "")


def import_text(
    name: str, text: str | bytes, context: Context | None = None, content_type: str = ""
) -> Imported:
    """Translate a text of a known format.

    Args:
        name: one of ``IMPORTERS``.
        text: the document as it was sent.
        context: import rules, and what this cluster has.
        content_type: of the document; YAML is assumed where the format is YAML.

    Raises:
        ImportRefusedError: the document is malformed, or cannot become a job.
    """
    return IMPORTERS[name].read(text, context or Context(), content_type)


def foreign_variables(gang: Gang, member: Member, *, has_gpus: bool) -> dict[str, str]:
    """The variables of the system that the job's ``compat.format`` names; none without one.

    Args:
        gang: all that the members have in common.
        member: one of them.
        has_gpus: its devices are GPUs.
    """
    compat = gang.spec.compat
    if compat is None:
        return {}
    return _BY_COMPAT_FORMAT[compat.format].variables(gang, member, has_gpus)


def format_of_text(text: str) -> str:
    """The format of a text that is not JSON or YAML; empty if no importer recognises it."""
    found = (name for name, each in IMPORTERS.items() if each.recognises_text(text))
    return next(found, "")


def format_of_document(document: object) -> str:
    """The format of a document; empty for a native one and for an unknown one."""
    if not isinstance(document, Mapping):
        return ""
    return next((name for name, each in IMPORTERS.items() if each.recognises(document)), "")
