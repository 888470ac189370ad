"""An SSH server on loopback that presents its host key and rejects all logins."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import asyncssh


@dataclass(frozen=True)
class Greeter:
    """Address and fingerprint of the server."""

    port: int
    fingerprint: str
    key: str


@contextmanager
def ssh_greeter() -> Iterator[Greeter]:
    """Serve in a separate thread inside the block."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    servers: list[asyncssh.SSHAcceptor] = []

    async def serve() -> None:
        servers.append(await asyncssh.listen("127.0.0.1", 0, server_host_keys=[key]))
        ready.set()

    def run() -> None:
        serving = loop.create_task(serve())
        loop.run_forever()
        loop.run_until_complete(serving)
        servers[0].close()
        loop.run_until_complete(servers[0].wait_closed())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(60)
        yield Greeter(
            port=servers[0].get_port(),
            fingerprint=key.get_fingerprint("sha256"),
            key=" ".join(key.export_public_key("openssh").decode().split()[:2]),
        )
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
