"""The programs that form a portal on one machine."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from portal.supervisor.children import ChildProgram
from portal.supervisor.files import DataDir
from portal.supervisor.options import ROOT

# The broker stops last, since the other processes depend on it.
STAGE_FACES, STAGE_WORKERS, STAGE_NODES, STAGE_BROKER = range(4)
NODE_THREADS = 4
DEFAULT_THREADS = 3
"""One thread may wait for slow receivers of notifications; the others run the remaining tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTable:
    """Builds the programs of one start, which share an environment and a data directory."""

    data: DataDir
    environment: Mapping[str, str]

    def redis(self, command: Sequence[str]) -> ChildProgram:
        program = self._program("redis", command)
        return replace(program, stage=STAGE_BROKER, stop_seconds=5, has_heartbeat=True)

    def nodes(self, name: str, arguments: Sequence[str], handles: Sequence[int]) -> ChildProgram:
        """Return a Python program that serves nodes, on sockets that outlast its restarts."""
        program = self._python(name, arguments)
        return replace(
            program, stage=STAGE_NODES, stop_seconds=8, has_heartbeat=True, pass_fds=tuple(handles)
        )

    def web(self, handle: int) -> ChildProgram:
        """Return the web server, on a socket that outlasts its restarts."""
        program = self._python("web", ["-m", "portal.supervisor.web", "--fd", str(handle)])
        return replace(program, stage=STAGE_FACES, pass_fds=(handle,), has_heartbeat=True)

    def workers(self) -> list[ChildProgram]:
        """Return the workers of the three queues: rounds, nodes and housekeeping."""
        return [
            self._worker("rounds", "--pool", "prefork", "--concurrency", "1"),
            self._worker("nodes", "--pool", "threads", "--concurrency", str(NODE_THREADS)),
            self._worker("default", "--pool", "threads", "--concurrency", str(DEFAULT_THREADS)),
        ]

    def beat(self) -> ChildProgram:
        """Return Celery beat, which sends periodic tasks."""
        arguments = ["-m", "celery", "-A", "portal.celery", "beat", "--loglevel", "WARNING"]
        scheduler = ["--scheduler", "portal.heartbeats:HeartbeatScheduler", "--pidfile", ""]
        program = self._python("beat", [*arguments, *scheduler])
        return replace(program, stage=STAGE_FACES, stop_seconds=5, has_heartbeat=True)

    def manage(self, *arguments: str) -> ChildProgram:
        """Return a management command, which runs once."""
        return self._python(arguments[0], [str(ROOT / "manage.py"), *arguments])

    def _worker(self, queue: str, *pool: str) -> ChildProgram:
        arguments = ["-m", "celery", "-A", "portal.celery", "worker", "--queues", queue]
        quiet = ["--without-gossip", "--without-mingle", "--loglevel", "INFO"]
        program = self._python(
            f"worker-{queue}", [*arguments, *quiet, "--hostname", f"{queue}@%h", *pool]
        )
        return replace(program, stage=STAGE_WORKERS, stop_seconds=12, has_heartbeat=True)

    def _python(self, name: str, arguments: Sequence[str]) -> ChildProgram:
        return self._program(name, [sys.executable, *arguments])

    def _program(self, name: str, command: Sequence[str]) -> ChildProgram:
        return ChildProgram(
            name=name, command=tuple(command), environment=self.environment, folder=ROOT
        )
