"""Command ``manage.py simulate``: run a trace under a policy, without database, Redis or secrets.

With ``--from-rounds``, it reads the database and the stored rounds of this installation.
"""

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduling.core.policies import (
    COMBINATORS,
    POLICIES,
    UnknownPolicyError,
    parameters_of,
)
from scheduling.core.policies.base import Policy
from scheduling.core.simulation.results import Result
from scheduling.core.workloads.traces import SimulationError
from scheduling.management.from_rounds import add_round_arguments, replay_rounds
from scheduling.management.simulations import (
    ProgressBar,
    add_world_arguments,
    build_setup,
    find_policy,
    find_rules,
    read_workload,
    what_it_saw,
)


class Command(BaseCommand):
    """Simulate a workload, and report the results of its jobs."""

    help = "Run a workload under a policy in simulated time, and print or store the figures."
    requires_system_checks: list[str] = []  # noqa: RUF012 (as the base class declares it)
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the workload, the rules and the output."""
        parser.add_argument("--workload", type=Path, metavar="FILE", help="the trace")
        parser.add_argument("--policy", metavar="NAME")
        parser.add_argument(
            "--policy-arg", nargs="+", action="extend", default=[], metavar="NAME=VALUE"
        )
        parser.add_argument(
            "--with",
            dest="wraps",
            action="append",
            default=[],
            metavar="NAME[:ARG=VALUE,...]",
            help="policy rule around the policy, such as hysteresis:min_run=600; can be repeated",
        )
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument(
            "--json", type=Path, metavar="FILE", help="write the figures to this file"
        )
        parser.add_argument(
            "--timeline", type=Path, metavar="FILE", help="write one JSON line per round"
        )
        parser.add_argument("--list-policies", action="store_true")
        parser.add_argument(
            "--list-rules", action="store_true", help="policy rules for --with, innermost first"
        )
        add_world_arguments(parser)
        add_round_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run it.

        Raises:
            CommandError: an argument is not valid; the message names it.
        """
        if options["list_policies"]:
            self._list_policies()
            return
        if options["list_rules"]:
            self._list_rules()
            return
        needed = ("policy",) if options["from_rounds"] else ("workload", "cluster", "policy")
        missing = [name for name in needed if not options[name]]
        if missing:
            raise CommandError(f"give {', '.join('--' + name for name in missing)}")
        _check_output(options["json"], "--json")
        try:
            if options["from_rounds"]:
                replay_rounds(options, self.stdout)
                return
            policy = find_policy(
                options["rules"], options["policy"], options["policy_arg"], options["wraps"]
            )
            result = self._run(policy, options)
            document = result.to_json()
            if options["json"]:
                text = json.dumps(document, indent=1) + "\n"
                options["json"].write_text(text, encoding="utf-8")
        except (SimulationError, UnknownPolicyError, ValueError) as error:
            raise CommandError(str(error)) from error
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"cannot read or write: {error}") from error
        self._print(document, result, options)

    def _run(self, policy: Policy, options: Mapping[str, Any]) -> Result:
        path: Path = options["workload"]
        run = find_rules(options["rules"])  # missing rules are reported first
        trace = read_workload(path, options["format"], options["types"])
        for reason, count in trace.left_out.items():
            self.stderr.write(f"left out: {count} lines that {reason}")
        setup = build_setup(trace, policy, options, options["seed"])
        with ExitStack() as stack:
            on_round = None
            if options["timeline"]:
                lines = stack.enter_context(options["timeline"].open("w", encoding="utf-8"))

                def on_round(state: Mapping[str, Any]) -> None:
                    lines.write(json.dumps(state) + "\n")

            progress = ProgressBar(len(trace.jobs), unit="jobs done")
            stack.callback(progress.end)
            return run(
                setup,
                policy,
                rules=options["rules"],
                workload=path.name,
                timer=time.perf_counter,
                on_round=on_round,
                on_progress=lambda done, now: progress.show(done, f"{now / 3600:.1f} h"),
            )

    def _list_policies(self) -> None:
        for name in sorted(POLICIES):
            policy = POLICIES[name]
            also = f" (also {', '.join(policy.aliases)})" if policy.aliases else ""
            self.stdout.write(f"{name}{also}: {policy.summary}")
            self._list_parameters(policy)

    def _list_rules(self) -> None:
        for name, combinator in COMBINATORS.items():
            self.stdout.write(f"{name}: {combinator.summary}")
            self._list_parameters(combinator)

    def _list_parameters(self, policy: type) -> None:
        for item in parameters_of(policy):
            self.stdout.write(
                f"    {item.name}={item.default}: {item.text or item.kind.__name__}"
                f" ({', '.join(item.choices) if item.choices else item.range_text})"
            )

    def _print(
        self, document: Mapping[str, Any], result: Result, options: Mapping[str, Any]
    ) -> None:
        for key, value in document.items():
            if key != "per_job":
                self.stdout.write(f"{key}: {json.dumps(value)}")
        self.stdout.write(what_it_saw(options))
        for fault in result.fallbacks[:10]:
            self.stderr.write(f"fallback {fault}")
        if len(result.fallbacks) > 10:
            self.stderr.write(f"and {len(result.fallbacks) - 10} more fallbacks")


def _check_output(path: Path | None, option: str) -> None:
    """Refuse a file that cannot be written before the run, not after it."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise CommandError(f"{option}: {path} cannot be written; use a file in a directory")
