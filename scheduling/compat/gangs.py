"""The part of a running gang from which importers derive the other system's variables."""

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

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
