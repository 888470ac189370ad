"""A run inside a container: started, followed and ended through the engine's local socket."""

from __future__ import annotations

import signal
import time
from typing import Any, Dict, List, Optional

from tessera.node import engine, system
from tessera.node.engine import Answer, EngineError
from tessera.node.logs import LogWriter
from tessera.node.payload import Ended, Payload, Started, StartError
from tessera.protocol import ContainerRef

LAST_OUTPUT_SECONDS = 5.0
RETRY_SECONDS = 1.0
_FRAME_HEAD = 8


class Frames:
    """Takes the engine's framed output apart; of a terminal it is not framed."""

    def __init__(self, *, plain: bool) -> None:
        self._plain = plain
        self._head = b""
        self._left = 0

    def feed(self, received: bytes) -> bytes:
        """The output in what was received."""
        if self._plain:
            return received
        output = []
        while received:
            if self._left:
                output.append(received[: self._left])
                taken = len(output[-1])
                self._left -= taken
                received = received[taken:]
                continue
            missing = _FRAME_HEAD - len(self._head)
            self._head += received[:missing]
            received = received[missing:]
            if len(self._head) == _FRAME_HEAD:
                self._left = int.from_bytes(self._head[4:], "big")
                self._head = b""
        return b"".join(output)


class ContainerPayload(Payload):
    """A created container that is started once and followed until it ends."""

    def __init__(self, ref: ContainerRef, log: LogWriter) -> None:
        self._ref, self._log = ref, log
        self._output: Optional[Answer] = None
        self._end: Optional[Answer] = None
        self._frames = Frames(plain=False)
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
            engine.order(self._ref, "POST", "/start", 204, 304)
            self._follow("all")
            pid = engine.inspect(self._ref)["State"].get("Pid")
        except EngineError as error:
            raise StartError(str(error), engine.failure_of_start(error)) from None
        if not isinstance(pid, int) or pid <= 0:
            return Started()
        return Started(pid, pid, system.start_ticks(pid))

    def _follow(self, tail: str) -> None:
        query = f"/logs?follow=1&stdout=1&stderr=1&tail={tail}"
        self._output = self._open("GET", query)
        self._frames = Frames(plain=self._plain)
        self._end = self._open("POST", "/wait?condition=not-running")

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
                if answer is self._output and answer.status == 200:
                    self._log.write(self._frames.feed(received))
                return

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
                self._log.write(b"\n[tessera] the engine was away: output may be missing\n")
                self._follow("0")
                return None
        except EngineError as error:
            self._look_at = time.monotonic() + RETRY_SECONDS
            return Ended(None, None, oom=False) if error.status == 404 else None
        return _ended(state)

    def clean_up(self) -> None:
        """See that it is dead, and take in its last output."""
        engine.ensure_dead(self._ref)
        deadline = time.monotonic() + LAST_OUTPUT_SECONDS
        output = self._output
        while output is not None and not output.closed and time.monotonic() < deadline:
            output.connection.settimeout(0.2)
            received = output.receive()
            if output.status == 200:
                self._log.write(self._frames.feed(received))
        for answer in self._answers():
            answer.close()


def _ended(state: Dict[str, Any]) -> Ended:
    code = state.get("ExitCode")
    number = code if isinstance(code, int) and not isinstance(code, bool) else None
    return Ended(number, None, oom=bool(state.get("OOMKilled")))
