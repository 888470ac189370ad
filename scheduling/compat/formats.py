"""Registry of importers, by name and by the form of a document."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from scheduling.compat.context import Context
from scheduling.compat.dstack.job import DSTACK
from scheduling.compat.hived.messages import TABLE as HIVED_MESSAGES
from scheduling.compat.importer import GangNames, Importer, Member
from scheduling.compat.messages import Messages
from scheduling.compat.openpai.job import OPENPAI
from scheduling.compat.result import Imported
from scheduling.compat.skypilot.job import SKYPILOT
from scheduling.compat.slurm.job import SBATCH

IMPORTERS: Final[Mapping[str, Importer]] = MappingProxyType(
    {importer.name: importer for importer in (OPENPAI, SBATCH, DSTACK, SKYPILOT)}
)
"""All job formats by name; the first format that recognises a document is used."""

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
    """Return the format with a name or an alias; empty if unknown."""
    return _NAMES.get(name, "")


def import_text(
    name: str, text: str | bytes, context: Context | None = None, content_type: str = ""
) -> Imported:
    """Translate a text of a known format.

    Args:
        name: one of ``IMPORTERS``.
        text: the document as it was sent.
        context: import rules, and facts about this cluster.
        content_type: media type of the document; YAML by default for YAML formats.

    Raises:
        ImportRefusedError: the document is malformed, or no job can represent it.
    """
    return IMPORTERS[name].read(text, context or Context(), content_type)


def foreign_variables(gang: GangNames, member: Member, *, has_gpus: bool) -> dict[str, str]:
    """Return the environment variables of the system in ``compat.format``; empty without one.

    Args:
        gang: the common properties of all members.
        member: the member whose environment is built.
        has_gpus: whether its devices are GPUs.
    """
    compat = gang.spec.compat
    if compat is None:
        return {}
    return _BY_COMPAT_FORMAT[compat.format].variables(gang, member, has_gpus)


def format_of_text(text: str) -> str:
    """Return the format of a text that is neither JSON nor YAML; empty if unknown."""
    found = (name for name, each in IMPORTERS.items() if each.recognises_text(text))
    return next(found, "")


def format_of_document(document: object) -> str:
    """Return the format of a document; empty for native and unknown documents."""
    if not isinstance(document, Mapping):
        return ""
    return next((name for name, each in IMPORTERS.items() if each.recognises(document)), "")
