"""All formats of jobs that can be read here: by name, and by the look of a text."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from portal.api.importers.context import Context
from portal.api.importers.documents import is_openpai, parse_document
from portal.api.importers.dstack import import_dstack
from portal.api.importers.openpai import import_openpai
from portal.api.importers.result import Imported
from portal.api.importers.sbatch import import_sbatch
from portal.api.importers.skypilot import import_skypilot, is_node_pools
from tessera.slurm_options import SCRIPT

TITLES: Final = MappingProxyType(
    {"openpai": "OpenPAI", "sbatch": "Slurm", "dstack": "dstack", "skypilot": "SkyPilot"}
)
"""Names of formats with what people call them."""

_DSTACK_TYPES: Final = frozenset({"task", "service", "dev-environment", "fleet"})
_SKYPILOT_KEYS: Final = frozenset({"run", "num_nodes", "resources", "setup", "file_mounts"})
_READERS: Final[Mapping[str, Callable[[str | bytes, Context, str], Imported]]] = MappingProxyType(
    {
        "openpai": lambda text, _context, content_type: import_openpai(text, content_type),
        "sbatch": lambda text, context, _content_type: import_sbatch(text, context),
        "dstack": import_dstack,
        "skypilot": import_skypilot,
    }
)


def import_text(
    name: str, text: str | bytes, context: Context | None = None, content_type: str = ""
) -> Imported:
    """Translate a text of a known format.

    Args:
        name: one of ``TITLES``.
        text: the document as it was sent.
        context: rules of admins, and what there is here.
        content_type: of the document; YAML is assumed where the format is YAML.

    Raises:
        ImportRefusedError: the document is malformed, or cannot become a job.
    """
    return _READERS[name](text, context or Context(), content_type)


def format_of_text(text: str) -> str:
    """The format that a text seems to have: a batch script; or empty."""
    return "sbatch" if SCRIPT.search(text) else ""


def format_of_document(document: object) -> str:
    """The format that a document seems to have; empty for a native one, and for none."""
    if is_openpai(document):
        return "openpai"
    if not isinstance(document, Mapping) or "roles" in document:
        return ""
    if document.get("type") in _DSTACK_TYPES:
        return "dstack"
    known = {key for key in document if isinstance(key, str)}
    return "skypilot" if known & _SKYPILOT_KEYS or is_node_pools(document) else ""


def recognised(text: str) -> tuple[str, Any]:
    """The format of a text with the document in it (None for a batch script).

    Raises:
        ImportRefusedError: it is no batch script, and no document either.
    """
    if name := format_of_text(text):
        return name, None
    document = parse_document(text)
    return format_of_document(document), document
