"""The value type of an importer: its name, its reader, its messages and its import rules."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scheduling.compat.context import Context
from scheduling.compat.gangs import Gang, Member
from scheduling.compat.messages import Messages
from scheduling.compat.result import Imported


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """The importer of a job format.

    Attributes:
        name: in REST addresses, on the command line and in stored jobs.
        title: what people call the system.
        read: translates a text, given a context and the content type; raises
            ``ImportRefusedError`` if the text is malformed or cannot become a job.
        messages: the table of all its remarks and faults.
        recognises: whether an object of a JSON or YAML document has this format.
        recognises_text: whether a text that is not JSON or YAML has this format.
        aliases: further names in REST addresses and on the command line.
        rule_kinds: kinds of names that import rules may map, each with its label.
        compat_format: ``compat.format`` of its jobs; empty if they follow no conventions.
        variables: the other system's variables for a member of such a job; its last argument
            tells whether the member's devices are GPUs.
    """

    name: str
    title: str
    read: Callable[[str | bytes, Context, str], Imported]
    messages: Messages
    recognises: Callable[[Mapping[object, object]], bool] = lambda _document: False
    recognises_text: Callable[[str], bool] = lambda _text: False
    aliases: tuple[str, ...] = ()
    rule_kinds: Mapping[str, str] = field(default_factory=dict)
    compat_format: str = ""
    variables: Callable[[Gang, Member, bool], dict[str, str]] = lambda _gang, _member, _gpus: {}
