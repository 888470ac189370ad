"""Jobs that are no gang: every instance is a job of its own, as every pod is for HiveD."""

from dataclasses import replace
from typing import Final

from scheduling.core.jobspec.values import Compat, Completion, JobInstance, JobSpec, RoleSpec

_LONGEST_NAME: Final = 63
_NEVER: Final = -1


def split(spec: JobSpec, group: str) -> tuple[JobSpec, ...]:
    """The jobs that ``spec`` stands for, roles and ranks in order; a gang stands for itself.

    Each is placed, evicted, tried again and ended by itself, so that a rule of completion that
    counts instances has nothing to count: a part fails when its instance fails.

    Args:
        spec: what was submitted.
        group: kept with the parts, so that they can be found together.
    """
    if spec.gang or spec.part is not None:
        return (spec,)
    several = sum(role.instances for role in spec.roles.values()) > 1
    return tuple(
        replace(
            spec,
            name=part_name(spec.name, f" {name}-{rank}") if several else spec.name,
            roles={name: _alone(role)},
            part=JobInstance(rank=rank, size=role.instances, group=group),
            compat=_compat_of(spec, name),
        )
        for name, role in spec.roles.items()
        for rank in range(role.instances)
    )


def part_name(name: str, suffix: str) -> str:
    """``name`` with a suffix, cut where both together would be too long."""
    return name[: _LONGEST_NAME - len(suffix)].rstrip() + suffix


def _alone(role: RoleSpec) -> RoleSpec:
    failures = _NEVER if role.completion.min_failed == _NEVER else 1
    return replace(
        role, instances=1, completion=Completion(min_failed=failures, min_succeeded=_NEVER)
    )


def _compat_of(spec: JobSpec, role: str) -> Compat | None:
    """Other systems' names of this role alone: there are no others in its part."""
    if spec.compat is None:
        return None
    names = {here: there for here, there in spec.compat.role_names.items() if here == role}
    return replace(spec.compat, role_names=names)
