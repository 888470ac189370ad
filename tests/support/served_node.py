"""An SSH node that a thread serves, for tests without a loop of their own."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.openssh_node import OpensshNode, openssh_node
from tests.support.ssh_node import SshNode, ssh_node

Served = SshNode | OpensshNode


@contextmanager
def served(
    place: Path, kind: str = "asyncssh", *, client_key: Path | None = None
) -> Iterator[Served]:
    """Serve a node in a thread; ``client_key``: key of the control plane."""
    ready, over = threading.Event(), threading.Event()
    found: list[Served] = []
    place.mkdir()

    async def serve() -> None:
        server = ssh_node if kind == "asyncssh" else openssh_node
        async with server(place, client_key_path=client_key) as node:
            found.append(node)
            ready.set()
            while not over.is_set():
                await asyncio.sleep(0.05)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield found[0]
    finally:
        over.set()
        thread.join(60)
