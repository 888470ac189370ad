"""Option ``manage.py simulate --from-rounds``: simulate past days under another policy."""

import json
from argparse import ArgumentParser
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.core.management.base import CommandError, OutputWrapper

from scheduling.clusters.models import VirtualCluster
from scheduling.core.jobspec.errors import RefusalError
from scheduling.core.jobspec.scalars import read_instant
from scheduling.core.policies import read_policy_args
from scheduling.storage.opening import open_storage
from scheduling.what_if.services.recorded_days import recorded_days
from scheduling.what_if.services.replays import replay
from tenants.clock import database_now
from tenants.errors import DomainError

_SHOWN: Final = 20
_FIGURES: Final = (
    "completed", "avg_jct_h", "p50_jct_h", "p90_jct_h", "p99_jct_h", "makespan_h",
    "avg_restarts", "worst_ftf", "avg_gpus_busy", "failed_decisions",
)  # fmt: skip


def replay_rounds(options: Mapping[str, Any], out: OutputWrapper) -> None:
    """Replay stored rounds from database and data directory, and print winners and losers.

    Raises:
        CommandError: an argument is not valid, or the span has no stored rounds.
        UnknownPolicyError: the policy or a parameter of it is unknown.
    """
    name = options["policy"]
    args = read_policy_args(name, options["policy_arg"], options["wraps"])
    now = database_now()
    until = read_moment("--until", options["until"]) or now
    since = read_moment("--since", options["since"]) or until - timedelta(days=1)
    try:
        days = recorded_days(
            vc=virtual_cluster_named(options["vc"]),
            since=since,
            until=until,
            storage=open_storage(settings.TESSERA.storage),
            now=now,
        )
    except DomainError as error:
        raise CommandError(str(error)) from error
    answer = replay(days, name, args, size_aware=options["size_aware"])
    if options["json"]:
        options["json"].write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    _print(answer, out)


def add_round_arguments(parser: ArgumentParser) -> None:
    """Declare the options for the replayed days."""
    group = parser.add_argument_group("past days (--from-rounds)")
    group.add_argument(
        "--from-rounds", action="store_true", help="replay stored rounds instead of a trace"
    )
    group.add_argument(
        "--vc", metavar="NAME", help="virtual cluster; required if there are several"
    )
    group.add_argument("--since", metavar="ISO8601", help="default: one day before --until")
    group.add_argument("--until", metavar="ISO8601", help="default: now")


def virtual_cluster_named(name: str | None) -> VirtualCluster:
    """Return the virtual cluster of this name, or the only one without a name.

    Raises:
        CommandError: none has this name, or a name is needed.
    """
    rows = VirtualCluster.objects.unscoped().order_by("name")
    if name is not None:
        found = rows.filter(name=name).first()
        if found is None:
            raise CommandError(f"virtual cluster {name!r} not found")
        return found
    names = list(rows.filter(archived_at=None).values_list("name", flat=True))
    if len(names) != 1:
        raise CommandError(f"specify --vc; known: {', '.join(names) or 'none'}")
    return rows.get(name=names[0])


def read_moment(name: str, given: str | None) -> datetime | None:
    """Parse the time in an option.

    Raises:
        CommandError: the option is not a valid time.
    """
    if given is None:
        return None
    try:
        return read_instant(given)
    except RefusalError as refusal:
        raise CommandError(f"{name} {refusal.message} {refusal.remedy}") from None


def _print(answer: Mapping[str, Any], out: OutputWrapper) -> None:
    was, would_be = answer["was"], answer["would_be"]
    out.write(f"{answer['span']}: {answer['rounds']} stored rounds, {was['jobs']} jobs")
    if answer["assumed"]:
        out.write(f"{answer['assumed']} jobs never ran; if started, they run for the median time")
    for reason, count in answer["left_out"].items():
        out.write(f"left out: {count} jobs ({reason})")
    _print_accuracy(answer["accuracy"], out)
    out.write(f"{'':<18}{was['policy']:>14}{would_be['policy']:>14}")
    for name in _FIGURES:
        out.write(f"{name:<18}{_number(was[name]):>14}{_number(would_be[name]):>14}")
    out.write(
        f"{answer['winner']} faster, {answer['loser']} slower, {answer['same']} unchanged, "
        f"{answer['unknown']} not finished"
    )
    others = answer["others"]
    if any(others.values()):
        out.write(
            f"jobs of other tenants: {others['winner']} faster, {others['loser']} slower, "
            f"{others['same']} unchanged, {others['unknown']} not finished"
        )
    out.write(f"{'job':>10}{'in fact':>12}{'was':>12}{'would be':>12}{'change':>12}  verdict")
    for row in answer["jobs"][:_SHOWN]:
        cells = (row[key] for key in ("in_fact_s", "was_s", "would_be_s", "change_s"))
        numbers = "".join(f"{_number(cell):>12}" for cell in cells)
        out.write(f"{row['job']:>10}{numbers}  {row['verdict']}")


def _print_accuracy(accuracy: Mapping[str, Any], out: OutputWrapper) -> None:
    """Print the difference between the unchanged replay and the recorded facts."""
    for name in ("starts", "ends"):
        facts = accuracy[name]
        if not facts["jobs"]:
            out.write(f"replayed {name}: no jobs to compare")
            continue
        out.write(
            f"replayed {name}: {facts['jobs']} jobs, {facts['within_one_round']:.1%} within "
            f"{accuracy['round_s']:g} s, median difference {_number(facts['median_s'])} s, "
            f"p90 {_number(facts['p90_s'])} s, {facts['missing']} not reached"
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
