"""Jobs without a gang: every instance is a separate job, as every pod is in HiveD."""

from dataclasses import replace
from typing import Final

from scheduling.core.jobspec.values import Compat, Completion, JobInstance, JobSpec, RoleSpec

_LONGEST_NAME: Final = 63
_NEVER: Final = -1


def split(spec: JobSpec, group: str) -> tuple[JobSpec, ...]:
    """Split ``spec`` into a job for each instance, by role and rank; a gang remains one job.

    Each part is placed, evicted, retried and ended separately. Completion rules that count
    instances do not apply: a part fails when its instance fails.

    Args:
        spec: the submitted specification.
        group: stored with all parts, to find them together.
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
    """Append a suffix to ``name``, which is shortened if both would be too long."""
    return name[: _LONGEST_NAME - len(suffix)].rstrip() + suffix


def _alone(role: RoleSpec) -> RoleSpec:
    failures = _NEVER if role.completion.min_failed == _NEVER else 1
    return replace(
        role, instances=1, completion=Completion(min_failed=failures, min_succeeded=_NEVER)
    )


def _compat_of(spec: JobSpec, role: str) -> Compat | None:
    """Return the names in other systems of this role alone, the only one in its part."""
    if spec.compat is None:
        return None
    names = {here: there for here, there in spec.compat.role_names.items() if here == role}
    return replace(spec.compat, role_names=names)
