"""Attempts that run and end, without a node."""

from scheduling.enums import MemberStep
from scheduling.runs.models import Member
from scheduling.runs.services import attempts
from tessera import protocol
from tests.factories.cluster import NOW


def members_of(job):
    return list(Member.objects.filter(attempt__job=job).order_by("attempt_id", "node_rank"))


def prepare_members(job, now=NOW):
    members = [m for m in members_of(job) if m.step == MemberStep.WAITING]
    attempts.mark_preparing(member_ids=[m.pk for m in members], now=now)
    return [attempts.mark_prepared(member_id=m.pk, now=now) for m in members]


def run_members(job, now=NOW):
    prepare_members(job, now)
    for member in members_of(job):
        attempts.mark_running(
            member_id=member.pk, pid=100, boot_id="boot", started_at=now, now=now
        )


def exit_record(code=0, cause=protocol.CAUSE_EXITED, failure="", **kwargs):
    return protocol.ExitRecord(
        cause=cause, failure=failure, at=NOW.timestamp(), code=code, **kwargs
    )


def end_member(member, *args, at=NOW, **kwargs):
    attempts.mark_exited(member_id=member.pk, record=exit_record(*args, **kwargs), now=at)
