"""A run inside a container: started, followed and ended through the engine's local socket."""

from __future__ import annotations

import signal
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from tessera.isolation import CONTAINER, OWN_NETWORK, SHARED_NETWORK
from tessera.node import container_network, engine, system
from tessera.node.container_network import NoNetworkError
from tessera.node.engine import Answer, EngineError
from tessera.node.output import Output
from tessera.node.payload import Ended, Payload, Started, StartError
from tessera.protocol import ContainerRef

LAST_OUTPUT_SECONDS = 5.0
REST_SECONDS = 30.0
RETRY_SECONDS = 1.0
_OUTPUT = "/logs?stdout=1&stderr=1"
_MISSING = b"\n[tessera] output of the container may be missing here\n"


class ContainerPayload(Payload):
    """A created container that is started once and followed until it ends."""

    isolation = CONTAINER

    def __init__(
        self, ref: ContainerRef, write: Callable[[bytes], None], ports: Sequence[int] = ()
    ) -> None:
        self._ref, self._write, self._ports = ref, write, ports
        self.network = OWN_NETWORK if ref.network else SHARED_NETWORK
        self._output: Optional[Answer] = None
        self._end: Optional[Answer] = None
        self._said = Output()
        self._plain = False
        self._look_at = 0.0
        self.warnings = []

    def start(self) -> Started:
        """Start the container; one that runs already is adopted."""
        try:
            found = engine.inspect(self._ref)
            self._plain = bool(found.get("Config", {}).get("Tty"))
            if found["State"].get("Status") in ("exited", "dead"):
                raise StartError("the container has run before")
            if self._ref.network:
                container_network.open_network(self._ref, self._ports)
            engine.order(self._ref, "POST", "/start", 204, 304)
            self._follow()
            pid = engine.inspect(self._ref)["State"].get("Pid")
        except EngineError as error:
            raise StartError(str(error), engine.failure_of_start(error)) from None
        except NoNetworkError as error:
            raise StartError(str(error)) from None
        if not isinstance(pid, int) or pid <= 0:
            return Started()
        return Started(pid, pid, system.start_ticks(pid))

    def _follow(self) -> None:
        self._output = self._open("GET", self._query() + "&follow=1")
        self._end = self._open("POST", "/wait?condition=not-running")

    def _query(self) -> str:
        """What asks for the output that has not been taken in yet."""
        if self._plain:  # of a terminal there are no messages: it is only followed
            return _OUTPUT + ("" if self._output is None else "&tail=0")
        return f"{_OUTPUT}&timestamps=1{self._said.go_on()}"

    def _open(self, method: str, verb: str) -> Answer:
        path = f"/containers/{self._ref.name}{verb}"
        answer = engine.open_request(self._ref.socket, method, path, timeout=engine.ANSWER_SECONDS)
        answer.connection.setblocking(False)
        return answer

    def descriptors(self) -> List[int]:
        """The connections that are open."""
        return [answer.fileno() for answer in self._answers()]

    def _answers(self) -> List[Answer]:
        return [answer for answer in (self._output, self._end) if answer and not answer.closed]

    def readable(self, descriptor: int) -> None:
        """Take output into the log, or notice that the wait is over."""
        for answer in self._answers():
            if answer.fileno() == descriptor:
                received = answer.receive()
                if answer is self._output:
                    self._take(received)
                return

    def _take(self, received: bytes) -> None:
        """Put output into the log, and say so where some has gone."""
        output = self._output
        if output is None or output.status != 200:
            return
        new = received if self._plain else self._said.feed(received)
        if self._said.is_lost:
            self._said.is_lost = False
            self._write(_MISSING)
        self._write(new)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the container's main process."""
        try:
            engine.order(self._ref, "POST", f"/kill?signal={number.name}", 204, 404, 409)
        except EngineError:
            pass  # tried again with the next signal; SIGKILL is repeated until the end

    def ended(self) -> Optional[Ended]:
        """How the container ended; None while it runs or while the engine is away."""
        if self._end is not None and not self._end.closed:
            return None
        if time.monotonic() < self._look_at:
            return None
        try:
            state: Dict[str, Any] = engine.inspect(self._ref)["State"]
            if state.get("Running"):
                if self._plain:
                    self._write(_MISSING)
                self._follow()
                return None
        except EngineError as error:
            self._look_at = time.monotonic() + RETRY_SECONDS
            return Ended(None, None, oom=False) if error.status == 404 else None
        return _ended(state)

    def clean_up(self) -> None:
        """See that it is dead, and take in its last output."""
        engine.ensure_dead(self._ref)
        self._drain(LAST_OUTPUT_SECONDS)
        if self._output is not None and not self._plain:
            self._output.close()
            self._take_rest()
        for answer in self._answers():
            answer.close()
        container_network.close_network(self._ref)

    def _take_rest(self) -> None:
        """Take in what the connection that followed has kept back at the end.

        On a busy machine the engine ends it before the last messages of a short container.
        """
        try:
            self._output = self._open("GET", self._query())
        except EngineError:
            return
        self._drain(REST_SECONDS)
        if not self._output.closed or (self._output.status == 200 and self._said.seeks):
            self._write(_MISSING)

    def _drain(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        output = self._output
        while output is not None and not output.closed and time.monotonic() < deadline:
            output.connection.settimeout(0.2)
            self._take(output.receive())


def _ended(state: Dict[str, Any]) -> Ended:
    code = state.get("ExitCode")
    number = code if isinstance(code, int) and not isinstance(code, bool) else None
    return Ended(number, None, oom=bool(state.get("OOMKilled")))
