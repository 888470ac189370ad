"""The SSH channel in which a node runs ``serve``."""

import asyncio
from typing import Final

import asyncssh

from workers.transports.base import TransportError, UnreachableNodeError
from workers.transports.session import ServeSession

KEPT_ERROR_BYTES: Final = 2000


class NotInstalledError(TransportError):
    """``serve`` ended before its greeting: the bundle is missing or damaged."""


class ServeChannel(asyncssh.SSHClientSession[bytes]):
    """The channel of ``serve``."""

    def __init__(self, request_seconds: float) -> None:
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._errors = b""
        self._unsent: list[bytes] = []
        self.exit_status: int | None = None
        self.session = ServeSession(self._write, request_seconds=request_seconds)

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Keep the channel."""
        self._channel = chan

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Feed the session with output, and store the end of the errors."""
        if datatype is None:
            self.session.feed(data)
        else:
            self._errors = (self._errors + data)[-KEPT_ERROR_BYTES:]
        if self.session.ended is not None and self._channel is not None:
            self._channel.abort()

    def exit_status_received(self, status: int) -> None:
        """Keep the status of the program."""
        self.exit_status = status

    def pause_writing(self) -> None:
        """Hold requests back, since the node reads too slowly."""
        self.session.hold()

    def resume_writing(self) -> None:
        """Send requests again."""
        self.session.go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session with the reason."""
        said = self._errors.decode("utf-8", "replace").strip().splitlines()
        why = said[-1] if said else str(exc or "the node closed the session")
        self.session.end(UnreachableNodeError(f"the session ended: {why[:500]}"))

    def _write(self, data: bytes) -> None:
        if self._channel is None:
            raise BrokenPipeError("the channel is closed")
        # All requests of one pass of the loop leave in one packet.
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(data)

    def _flush(self) -> None:
        data, self._unsent = b"".join(self._unsent), []
        if self._channel is None:
            return
        try:
            self._channel.write(data)
        except OSError as error:
            self.session.end(UnreachableNodeError(f"the connection broke: {error}"))
