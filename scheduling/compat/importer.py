"""Interface of importers, and of the running gang from which they derive environment variables."""

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
        """Return the name of the instance's role."""

    @property
    def rank(self) -> int:
        """Return the number of the instance within its role, from 0."""

    @property
    def node_rank(self) -> int:
        """Return the number of the instance within the gang, from 0."""

    @property
    def host(self) -> str:
        """Return the address at which other members reach it."""

    @property
    def devices(self) -> Sequence[int]:
        """Return the indices of the instance's devices on its node."""

    @property
    def ports(self) -> Mapping[str, Sequence[int]]:
        """Return the port numbers by label."""


class GangNames(Protocol):
    """The common properties of all members of an attempt."""

    @property
    def spec(self) -> JobSpec:
        """Return the specification of the job."""

    @property
    def job_id(self) -> int:
        """Return the job ID."""

    @property
    def job_name(self) -> str:
        """Return the name of the job."""

    @property
    def attempt_number(self) -> int:
        """Return the number of the attempt, from 1."""

    @property
    def tenant(self) -> str:
        """Return the name of the tenant."""

    @property
    def virtual_cluster(self) -> str:
        """Return the name of the virtual cluster."""

    @property
    def user(self) -> str:
        """Return the name of the owner."""

    @property
    def members(self) -> Sequence[Member]:
        """Return all members in the order of ``node_rank``."""

    @property
    def master(self) -> Member:
        """Return the member whose address is the rendezvous of the gang."""

    def of_role(self, role: str) -> Sequence[Member]:
        """Return the members of a role in order of rank."""


def as_variable(text: str) -> str:
    """Return ``text`` as a valid part of a variable name."""
    return re.sub(r"[^A-Za-z0-9_]", "_", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """The importer of a job format.

    Attributes:
        name: name in REST addresses, on the command line and in stored jobs.
        title: display name of the system.
        read: translates a text, given a context and the content type; raises
            ``ImportRefusedError`` if the text is malformed or no job can represent it.
        messages: table of all its remarks and faults.
        recognises: whether an object of a JSON or YAML document has this format.
        recognises_text: whether a text that is neither JSON nor YAML has this format.
        aliases: further names in REST addresses and on the command line.
        rule_kinds: kinds of names that import rules may map, each with its label.
        compat_format: ``compat.format`` of its jobs; empty if they need no special environment.
        variables: returns the other system's environment variables of a member; the last argument
            is true if the member's devices are GPUs.
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
    variables: Callable[[GangNames, Member, bool], dict[str, str]] = lambda *_: {}
