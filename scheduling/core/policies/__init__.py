"""The policies by name, each with its parameters."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from scheduling.core.policies.base import Policy
from scheduling.core.policies.crius import Crius
from scheduling.core.policies.easyscale.policy import EasyScale
from scheduling.core.policies.elasticflow.policy import ElasticFlow
from scheduling.core.policies.gandiva.policy import Gandiva
from scheduling.core.policies.gavel.policy import Gavel
from scheduling.core.policies.optimus import Optimus
from scheduling.core.policies.parameters import (
    Parameter,
    UnknownPolicyError,
    checked,
    parameters_of,
    read_args,
    shown,
)
from scheduling.core.policies.pollux import Pollux
from scheduling.core.policies.queues.antman import AntMan
from scheduling.core.policies.queues.backfilling import Backfill
from scheduling.core.policies.queues.capacity import Capacity, Philly
from scheduling.core.policies.queues.ordered import Fifo, ShortestService, ShortestTime
from scheduling.core.policies.queues.shares import DominantShare, FairShare
from scheduling.core.policies.queues.singularity import Singularity
from scheduling.core.policies.sia import Sia
from scheduling.core.policies.tessera import Tessera
from scheduling.core.policies.tiresias import Tiresias
from scheduling.core.policies.wrapping import (
    COMBINATORS,
    WRAP,
    parted,
    read_wraps,
    stand_in,
    wrapped,
)

POLICIES: Final[Mapping[str, type[Policy]]] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            Fifo,
            AntMan,
            Backfill,
            Capacity,
            Crius,
            DominantShare,
            EasyScale,
            ElasticFlow,
            FairShare,
            Gandiva,
            Gavel,
            Optimus,
            Philly,
            Pollux,
            ShortestService,
            ShortestTime,
            Sia,
            Singularity,
            Tessera,
            Tiresias,
        )
    }
)

ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {alias: policy.name for policy in POLICIES.values() for alias in policy.aliases}
)

__all__ = [
    "ALIASES",
    "COMBINATORS",
    "POLICIES",
    "WRAP",
    "Parameter",
    "UnknownPolicyError",
    "make_policy",
    "parameters_of",
    "policy_class",
    "read_policy",
    "read_policy_args",
    "stand_in",
]


def policy_class(name: str) -> type[Policy]:
    """Return the class of a policy by its name or an alias.

    Raises:
        UnknownPolicyError: unknown name; the message lists the valid ones.
    """
    policy = POLICIES.get(ALIASES.get(name, name))
    if policy is None:
        raise UnknownPolicyError(
            f"policy {shown(name)} not found; known: {', '.join(sorted(POLICIES))}"
        )
    return policy


def make_policy(name: str, args: Mapping[str, Any]) -> Policy:
    """Return the policy ``name`` with ``args``, inside the policy rules in ``wrap``.

    Raises:
        UnknownPolicyError: the name, a parameter's name, its type or size is not valid; the
            message lists the valid ones.
    """
    policy = policy_class(name)
    own, wraps = parted(args)
    return wrapped(policy(**checked(policy, own, name)), wraps)


def read_policy_args(name: str, pairs: Sequence[str], wraps: Sequence[str] = ()) -> dict[str, Any]:
    """Parse command-line parameters: ``name=value`` each, and ``NAME[:ARG=VALUE,...]`` around.

    Raises:
        UnknownPolicyError: the name or a parameter is not valid, as in ``make_policy``.
    """
    args = read_args(policy_class(name), pairs, name)
    around = read_wraps(wraps)
    return {**args, WRAP: around} if around else args


def read_policy(name: str, pairs: Sequence[str], wraps: Sequence[str] = ()) -> Policy:
    """Create the policy ``name`` with parameters from a command line.

    Raises:
        UnknownPolicyError: the name or a parameter is not valid, as in ``make_policy``.
    """
    return make_policy(name, read_policy_args(name, pairs, wraps))
