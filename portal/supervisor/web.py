"""Web process: uvicorn on a socket that the supervisor holds open.

While this process restarts, connections wait in the queue of the socket instead of being refused.
"""

import argparse
import asyncio
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import uvicorn

from portal.memory import keep_connections, settle

SWITCH_SECONDS: Final = 0.0005
"""Thread switch interval: delays the event loop by at most 0.5 ms while a thread renders a page.

With Python's default of 5 ms, the loop waits up to 5 ms at each wake-up during a rendering.
"""

MOST_MESSAGE_BYTES: Final = 128 << 10
"""Limit of a websocket message from a client: several times a list of all topics of a tab."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve requests until TERM; open requests get a few seconds to finish."""
    parser = argparse.ArgumentParser(prog="python -m portal.supervisor.web")
    parser.add_argument("--fd", type=int, required=True, help="a listening socket")
    options = parser.parse_args(arguments)
    config = uvicorn.Config(
        "portal.asgi:application",
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        # The application itself handles the proxies in TESSERA_TRUSTED_PROXIES.
        proxy_headers=False,
        timeout_graceful_shutdown=5,
        # Messages are small, and compressors for 500 viewers would cost more than they save.
        ws_per_message_deflate=False,
        ws_max_size=MOST_MESSAGE_BYTES,
    )
    _BeatingServer(config).run(sockets=[socket.socket(fileno=options.fd)])
    return 0


class _BeatingServer(uvicorn.Server):
    """Server that writes heartbeats from its event loop."""

    async def main_loop(self) -> None:
        from django.urls import get_resolver  # noqa: PLC0415 needs the loaded applications

        from portal.heartbeats import beat_forever  # noqa: PLC0415 likewise

        _ = get_resolver().url_patterns  # loads all pages before the first request
        settle()
        keep_connections()
        sys.setswitchinterval(SWITCH_SECONDS)
        beating = asyncio.create_task(beat_forever("web"))
        try:
            await super().main_loop()
        finally:
            beating.cancel()
            with suppress(asyncio.CancelledError):
                await beating


if __name__ == "__main__":
    sys.exit(main())
