"""``manage.py simulate``: run a trace under a policy; needs no database, Redis or secrets."""

import json
import sys
import time
from argparse import BooleanOptionalAction
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduling.core.policies import POLICIES, UnknownPolicyError, parameters_of, read_policy
from scheduling.core.policies.base import Policy
from scheduling.core.simulator import (
    Knowledge,
    Result,
    Setup,
    SimulationError,
    read_cluster,
    simulate,
)
from scheduling.core.simulator.archives import text_of
from scheduling.core.simulator.readers import FORMATS, read_trace
from scheduling.core.simulator.rules import RULES

_MOST_BYTES = 512 * 1024 * 1024


class ProfileFolder:
    """Profiles in a directory; nothing outside it is ever read."""

    def __init__(self, root: Path | None) -> None:
        self._root = root.resolve() if root else None

    def __call__(self, path: str) -> str | None:
        """The text of a file below the directory; None: it is not there."""
        if self._root is None:
            return None
        place = (self._root / path).resolve()
        if not place.is_relative_to(self._root) or not place.is_file():
            return None
        return place.read_text(encoding="utf-8")


class Command(BaseCommand):
    """Simulate a workload, and say how its jobs fared."""

    help = "Run a workload under a policy in simulated time, and print or store the figures."
    requires_system_checks: list[str] = []  # noqa: RUF012 (as the base class declares it)
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare what to run, under which rules, and what to write."""
        parser.add_argument("--workload", type=Path, metavar="FILE", help="the trace")
        parser.add_argument("--profiles", type=Path, metavar="DIR", help="measured profiles")
        parser.add_argument("--cluster", metavar="TYPE:NxD,...", help="as in aws:6x4,rtx:3x8")
        parser.add_argument("--policy", metavar="NAME")
        parser.add_argument(
            "--policy-arg", nargs="+", action="extend", default=[], metavar="NAME=VALUE"
        )
        parser.add_argument("--rules", choices=sorted(RULES), default="sia")
        parser.add_argument("--format", choices=["auto", *sorted(FORMATS)], default="auto")
        parser.add_argument("--interval", type=float, metavar="SECONDS", help="between rounds")
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
        parser.add_argument("--timeline", type=Path, metavar="FILE", help="a JSON line per round")
        parser.add_argument("--knowledge", choices=["observed", "oracle"], default="observed")
        parser.add_argument("--size-aware", action=BooleanOptionalAction, default=False)
        parser.add_argument("--shared-history", action=BooleanOptionalAction, default=False)
        parser.add_argument("--list-policies", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run it.

        Raises:
            CommandError: something that was given cannot be used; the message names it.
        """
        if options["list_policies"]:
            self._list_policies()
            return
        missing = [name for name in ("workload", "cluster", "policy") if not options[name]]
        if missing:
            raise CommandError(f"give {', '.join('--' + name for name in missing)}")
        try:
            policy = read_policy(options["policy"], options["policy_arg"])
            result = self._run(policy, options)
        except (SimulationError, UnknownPolicyError, ValueError) as error:
            raise CommandError(str(error)) from error
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"cannot read or write: {error}") from error
        document = result.to_json()
        if options["json"]:
            options["json"].write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        self._print(document, result, options)

    def _run(self, policy: Policy, options: Mapping[str, Any]) -> Result:
        path: Path = options["workload"]
        if path.stat().st_size > _MOST_BYTES:
            raise CommandError(f"{path} is larger than {_MOST_BYTES} bytes")
        if options["interval"] is not None and not 1.0 <= options["interval"] <= 86_400.0:
            raise CommandError(f"--interval is {options['interval']:g}; use 1 to 86400 seconds")
        setup = Setup(
            trace=read_trace(
                text_of(path.read_bytes(), path.name, most=_MOST_BYTES),
                path.name,
                options["format"],
            ),
            cluster=read_cluster(options["cluster"]),
            files=ProfileFolder(options["profiles"]),
            interval=options["interval"],
            seed=options["seed"],
            knowledge=Knowledge(
                oracle=options["knowledge"] == "oracle",
                size_aware=options["size_aware"],
                shared_history=options["shared_history"],
            ),
        )
        world = RULES[options["rules"]](setup)
        with ExitStack() as stack:
            on_round = None
            if options["timeline"]:
                lines = stack.enter_context(options["timeline"].open("w", encoding="utf-8"))

                def on_round(state: Mapping[str, Any]) -> None:
                    lines.write(json.dumps(state) + "\n")

            return simulate(
                world,
                policy,
                rules=options["rules"],
                workload=path.name,
                timer=time.perf_counter,
                on_round=on_round,
                on_progress=_Progress(len(setup.trace.jobs)) if sys.stderr.isatty() else None,
            )

    def _list_policies(self) -> None:
        for name in sorted(POLICIES):
            policy = POLICIES[name]
            also = f" (also {', '.join(policy.aliases)})" if policy.aliases else ""
            self.stdout.write(f"{name}{also}: {policy.summary}")
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
        self.stdout.write(
            f"the policy saw: {options['knowledge']} performance, "
            f"{'declared' if options['size_aware'] else 'no'} sizes, "
            f"{'shared' if options['shared_history'] else 'each job its own'} history"
        )
        for fault in result.fallbacks[:10]:
            self.stderr.write(f"fallback {fault}")
        if len(result.fallbacks) > 10:
            self.stderr.write(f"and {len(result.fallbacks) - 10} more fallbacks")


class _Progress:
    """A line on the terminal that says how far it is."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._shown = 0.0

    def __call__(self, active: int, now: float) -> None:
        if time.monotonic() - self._shown > 0.5:
            self._shown = time.monotonic()
            sys.stderr.write(f"\r{now / 3600:9.1f} h simulated, {active} of {self._jobs} active ")
            sys.stderr.flush()
