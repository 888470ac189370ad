"""Long tasks of a server in a forked child, so that the server never blocks."""

from __future__ import annotations

import gc
import json
import os
import traceback
from typing import Callable, NamedTuple, Optional, Protocol

from tessera import protocol
from tessera.node import helped, kernel, runs, system
from tessera.node.runs import Run, Store
from tessera.node.watch import Watch
from tessera.protocol import Json, ProtocolError


class Work(NamedTuple):
    """A child with a task: its pid, and the descriptor of its reply."""

    pid: int
    descriptor: int


class SessionPort(Protocol):
    """Interface of the session to the operations.

    Attributes:
        store: the node's runs.
        watch: the live ones.
        bundle: path of the code that runs.
    """

    store: Store
    watch: Watch
    bundle: str

    def reply(self, number: Optional[int], fields: Json) -> None:
        """Answer a request."""

    def work(self, number: int, task: Callable[[], Json], then: Callable[[Json], None]) -> None:
        """Run a long task in a child process and reply to the request with its result."""

    def start(self, run: Run, lock: int, then: Callable[[], None]) -> None:
        """Give a claimed run to a runner; ``then`` is called once the job runs or has failed."""

    def sweep_soon(self, *, whole: bool = False) -> None:
        """Empty the trash soon; with ``whole``, also remove old checkpoints and secrets."""


def fork_work(work: Callable[[], Json], keep_out: Callable[[], None]) -> Work:
    """Run a task in a child that leads its own process group.

    Args:
        work: returns the fields of the reply, or raises ``ProtocolError``.
        keep_out: called in the child, to detach it from the server.
    """
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if pid:
        os.close(writer)
        return Work(pid, reader)
    try:
        gc.disable()
        os.setsid()
        keep_out()
        system.redirect_standard_streams()
        kernel.close_others({writer, *helped.descriptors()})
        system.default_signals()
        system.write_all(writer, json.dumps(outcome(work)).encode("ascii"))
    except BaseException:  # without a result, the server replies ``work-died``
        os._exit(1)
    os._exit(0)


def outcome(work: Callable[[], Json]) -> Json:
    """Return the reply to a request: the result of the task, or its error."""
    try:
        return {"ok": True, **work()}
    except ProtocolError as error:
        return {"ok": False, "error": error.to_json()}
    except OSError as error:
        return {"ok": False, "error": runs.disk_error(error).to_json()}
    except Exception as error:  # a bug must not end the session
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__} at {os.path.basename(where.filename)}:{where.lineno}"
        return {"ok": False, "error": ProtocolError("internal", message).to_json()}


def read_outcome(received: bytes) -> Json:
    """Return the reply of a child, or an error if it died."""
    try:
        found = json.loads(received)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    error = ProtocolError("work-died", "the work was interrupted", protocol.NODE)
    return {"ok": False, "error": error.to_json()}
