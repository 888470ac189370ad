"""A run in a container: start, output and end through the engine's local socket."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Dict, List, Optional, Sequence

from tessera.isolation import CONTAINER, OWN_NETWORK, SHARED_NETWORK
from tessera.node import container_files, container_network, engine, system
from tessera.node.container_network import NoNetworkError
from tessera.node.container_output import ContainerOutput, Sink
from tessera.node.engine import EngineError, EngineResponse
from tessera.node.payload import Ended, Payload, Started, StartError
from tessera.node.tracking.endpoint import Endpoint
from tessera.protocol import ContainerRef

RETRY_SECONDS = 1.0


class ContainerPayload(Payload):
    """A created container that is started once and followed until it ends."""

    isolation = CONTAINER

    def __init__(
        self,
        ref: ContainerRef,
        sink: Sink,
        ports: Sequence[int] = (),
        writable: Sequence[str] = (),
        *,
        tracking: Optional[Endpoint] = None,
        script: str = "",
    ) -> None:
        """Args:
        writable: directories of the run to which the container writes.
        tracking: serves containers with an own network, if this account can enter it.
        script: path of the job's command on the node, which then gets the address.
        """
        self._ref, self._ports, self._writable = ref, ports, writable
        self.network = OWN_NETWORK if ref.network else SHARED_NETWORK
        self._output = ContainerOutput(ref, sink)
        self._end: Optional[EngineResponse] = None
        self._look_at = 0.0
        self.endpoint = tracking
        self._script = script
        self.warnings = []

    def start(self) -> Started:
        """Start the container; a running one is adopted."""
        try:
            found = engine.inspect(self._ref)
            if found["State"].get("Status") in ("exited", "dead"):
                raise StartError("the container has already run")
            if self._ref.network:
                container_network.open_network(self._ref, self._ports)
                self._open_endpoint()
            engine.order(self._ref, "POST", "/start", 204, 304)
            self._follow(found)
            pid = engine.inspect(self._ref)["State"].get("Pid")
        except EngineError as error:
            raise StartError(str(error), engine.failure_of_start(error)) from None
        except NoNetworkError as error:
            raise StartError(str(error)) from None
        if not isinstance(pid, int) or pid <= 0:
            return Started()
        return Started(pid, pid, system.start_ticks(pid))

    def _open_endpoint(self) -> None:
        """Serve the tracking endpoint in the network of the container, before it starts."""
        if self.endpoint is None:
            return
        holder = ContainerRef(name=self._ref.network, socket=self._ref.socket)
        pid = engine.inspect(holder)["State"].get("Pid")
        variables = self.endpoint.environment(is_own=True, uid=None)
        if not variables or not isinstance(pid, int) or pid <= 0:
            return
        self.endpoint.listen_in(pid)
        try:
            if self.endpoint.is_listening:
                export_in(self._script, variables)
                self.endpoint.open(is_own=True)
        except OSError:
            self.endpoint.close()  # the script is not this account's any more

    def _follow(self, found: Dict[str, Any]) -> None:
        self._output.follow(plain=bool(found.get("Config", {}).get("Tty")))
        self._end = engine.open_call(self._ref, "POST", "/wait?condition=not-running")

    def descriptors(self) -> List[int]:
        """Return the connections that are open."""
        answers = (self._output.answer(), self._end)
        return [answer.fileno() for answer in answers if answer and not answer.closed]

    def readable(self, descriptor: int) -> None:
        """Move output into the log, or record the end of the wait."""
        output, end = self._output.answer(), self._end
        if output is not None and output.fileno() == descriptor:
            self._output.receive()
        elif end is not None and not end.closed and end.fileno() == descriptor:
            end.receive()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the container's main process."""
        try:
            engine.order(self._ref, "POST", f"/kill?signal={number.name}", 204, 404, 409)
        except EngineError:
            pass  # retried with the next signal; SIGKILL is repeated until the end

    def freeze(self, *, frozen: bool) -> None:
        """Pause the container, or end its pause."""
        try:
            verb = "/pause" if frozen else "/unpause"
            engine.order(self._ref, "POST", verb, 204, 304, 404, 409, 500)
        except EngineError:
            pass  # the engine does not respond; the runner retries

    def ended(self) -> Optional[Ended]:
        """End of the container; None while it runs or the engine is unreachable."""
        if self._end is not None and not self._end.closed:
            return None
        if time.monotonic() < self._look_at:
            return None
        try:
            found = engine.inspect(self._ref)
            if found["State"].get("Running"):
                self._follow(found)
                return None
        except EngineError as error:
            self._look_at = time.monotonic() + RETRY_SECONDS
            return Ended(None, None, oom=False) if error.status == 404 else None
        return _ended(found["State"])

    def clean_up(self) -> None:
        """Ensure that the container is dead, and read its last output."""
        engine.ensure_dead(self._ref)
        self._output.finish()
        if self._end is not None:
            self._end.close()
        container_network.close_network(self._ref)
        container_files.reclaim(self._ref, list(self._writable))


def export_in(script: str, variables: Dict[str, str]) -> None:
    """Let a script of this account export variables first, once; its line numbers do not change.

    The environment of a container is fixed when it is created, and only its start shows whether
    the endpoint can be served.

    Raises:
        OSError: the script is not a regular file of this account, or cannot be written.
    """
    text = "".join(f"export {name}='{value}'; " for name, value in sorted(variables.items()))
    descriptor = system.open_regular(script, write=True)
    try:
        content = b""
        while piece := os.read(descriptor, 1 << 16):
            content += piece
        if not content.startswith(text.encode()):
            os.lseek(descriptor, 0, os.SEEK_SET)
            system.write_all(descriptor, text.encode() + content)
    finally:
        os.close(descriptor)


def _ended(state: Dict[str, Any]) -> Ended:
    code = state.get("ExitCode")
    number = code if isinstance(code, int) and not isinstance(code, bool) else None
    return Ended(number, None, oom=bool(state.get("OOMKilled")))
