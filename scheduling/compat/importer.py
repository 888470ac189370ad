"""The value type of an importer, and the running gang from which it derives variables."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scheduling.compat.context import Context
from scheduling.compat.messages import Messages
from scheduling.compat.result import Imported
from scheduling.core.jobspec import JobSpec


class Member(Protocol):
    """One rank of a gang."""

    @property
    def role(self) -> str:
        """Name of its role."""

    @property
    def rank(self) -> int:
        """Its number within the role, from 0."""

    @property
    def node_rank(self) -> int:
        """Its number within the gang, from 0."""

    @property
    def host(self) -> str:
        """Address at which the other members reach it."""

    @property
    def devices(self) -> Sequence[int]:
        """Indices of its devices on the node."""

    @property
    def ports(self) -> Mapping[str, Sequence[int]]:
        """Its ports by label."""


class Gang(Protocol):
    """All that the members of an attempt have in common."""

    @property
    def spec(self) -> JobSpec:
        """The specification of the job."""

    @property
    def job_id(self) -> int:
        """The job ID."""

    @property
    def job_name(self) -> str:
        """The name of the job."""

    @property
    def attempt_number(self) -> int:
        """The number of the attempt, from 1."""

    @property
    def tenant(self) -> str:
        """Name of the tenant."""

    @property
    def virtual_cluster(self) -> str:
        """Name of the virtual cluster."""

    @property
    def user(self) -> str:
        """Name of the owner."""

    @property
    def members(self) -> Sequence[Member]:
        """All members, in the order of ``node_rank``."""

    @property
    def master(self) -> Member:
        """The member that the others meet."""

    def of_role(self, role: str) -> Sequence[Member]:
        """The members of a role, in order."""


def as_variable(text: str) -> str:
    """``text`` as a part of a variable's name."""
    return re.sub(r"[^A-Za-z0-9_]", "_", text)


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
