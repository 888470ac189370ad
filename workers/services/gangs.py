"""The members of an attempt, as input of their environment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from scheduling.compat.gangs import as_variable
from scheduling.core.jobspec import JobSpec

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMember:
    """Address and ports of one rank of the gang.

    Attributes:
        rank: within the role; ``node_rank`` through the gang.
        host: address at which the other ranks reach it.
        ports: its ports by label.
        node_host: address of its node; empty where it is ``host``.
    """

    role: str
    rank: int
    node_rank: int
    host: str
    devices: tuple[int, ...]
    ports: Mapping[str, Sequence[int]]
    node_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptGang:
    """Common data of the members of an attempt.

    Attributes:
        port: the rendezvous port.
        members: every rank, in the order of ``node_rank``.
        layout: logical workers of each process, by member; None: it has none.
    """

    spec: JobSpec
    job_id: int
    job_name: str
    attempt_number: int
    tenant: str
    virtual_cluster: str
    user: str
    port: int
    members: tuple[GangMember, ...]
    layout: Sequence[Sequence[int]] | None = None

    def alone(self) -> "AttemptGang":
        """The gang of one rank in a network of its own, where it reaches itself by loopback."""
        (member,) = self.members
        inside = replace(member, host=LOOPBACK, node_host=member.host)
        return replace(self, members=(inside,))

    @property
    def master(self) -> GangMember:
        """The rank of the rendezvous."""
        return self.members[0]

    def of_role(self, role: str) -> list[GangMember]:
        """The ranks of one role, in order."""
        return sorted((m for m in self.members if m.role == role), key=lambda m: m.rank)


def as_name(text: str) -> str:
    """``text`` as the end of one of our variables: capitals, digits, underscores."""
    return as_variable(text).upper()
