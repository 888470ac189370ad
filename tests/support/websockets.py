"""A client of an ASGI websocket, without a server and without daphne."""

import json
from collections.abc import Mapping
from typing import Any

from asgiref.testing import ApplicationCommunicator


class Tab:
    """One websocket to an ASGI application, like that of a browser tab.

    Args:
        application: the ASGI application.
        path: the address.
        user: the signed-in user, or None.
        session: the session of the user, if relevant.
        headers: headers of the opening request.
    """

    def __init__(
        self,
        application: Any,
        path: str,
        user: Any = None,
        session: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        scope = {
            "type": "websocket",
            "path": path,
            "query_string": b"",
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
            "subprotocols": [],
        }
        if user is not None:
            scope["user"] = user
        if session is not None:
            scope["session"] = session
        self._line = ApplicationCommunicator(application, scope)

    async def is_turned_away(self) -> bool:
        """Try to open the socket; return whether the application refuses it."""
        await self._line.send_input({"type": "websocket.connect"})
        return bool((await self._line.receive_output(60))["type"] == "websocket.close")

    async def connect(self) -> None:
        """Open the socket."""
        await self._line.send_input({"type": "websocket.connect"})
        assert (await self._line.receive_output(60))["type"] == "websocket.accept"

    async def send(self, message: Any) -> None:
        """Send JSON, or unchanged text."""
        text = message if isinstance(message, str) else json.dumps(message)
        await self._line.send_input({"type": "websocket.receive", "text": text})

    async def send_bytes(self, sent: bytes) -> None:
        """Send a frame of bytes."""
        await self._line.send_input({"type": "websocket.receive", "bytes": sent})

    async def receive(self) -> Any:
        """Return the next message."""
        output = await self._line.receive_output(60)
        assert output["type"] == "websocket.send", output
        return json.loads(output["text"])

    async def closed_with(self) -> int:
        """Return the close code of the server."""
        output = await self._line.receive_output(60)
        assert output["type"] == "websocket.close", output
        return int(output["code"])

    async def is_silent(self) -> bool:
        """Return whether the server sends no message."""
        return bool(await self._line.receive_nothing(0.2))

    async def disconnect(self) -> None:
        """Close the socket."""
        await self._line.send_input({"type": "websocket.disconnect", "code": 1000})
        await self._line.wait(60)


def assert_refused(message: Any, topic: str) -> None:
    """Check that a message refuses a topic, with the fields that every message has."""
    version = message.pop("version")
    assert isinstance(version, int)
    assert message == {"topic": topic, "data": None, "error": "refused"}
