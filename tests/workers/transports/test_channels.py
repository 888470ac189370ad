"""One connection to a node carries few channels, however much is asked of it at once."""

import asyncio
import os
import signal
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ssh_node import SshNode, ssh_node
from tests.support.transport_runs import run_spec
from tests.support.unix_http import UnixHandler, served
from tests.workers.transports.conftest import bundle, put_in_place
from workers.transports.base import Container, Preparation, PrepareError
from workers.transports.docker import ENGINE_THREADS, DockerTransport
from workers.transports.ssh import MOST_CHANNELS, Patience, SshTransport

PATIENCE = Patience(connect=60.0, request=60.0)
CROWD = 100


def line_to(node: SshNode) -> SshTransport:
    return SshTransport(node.address, bundle(), PATIENCE)


async def test_a_crowd_of_requests_shares_one_channel_of_one_connection(tmp_path: Path) -> None:
    async with ssh_node(tmp_path) as node:
        line = line_to(node)
        await line.open()  # installs the node's part on a channel of its own

        answers = await asyncio.gather(*(line.telemetry() for _ in range(CROWD)))
        await line.close()

    assert len(answers) == CROWD
    assert len(node.commands) == 3  # in vain, the installation, and what has answered all
    assert node.count_connections() == 1
    assert 1 <= node.channels.most <= MOST_CHANNELS


async def test_a_node_that_is_stuck_delays_no_other(tmp_path: Path) -> None:
    async with ssh_node(tmp_path / "stuck") as stuck, ssh_node(tmp_path / "well") as well:
        lines = []
        for node in (stuck, well):
            put_in_place(node.home)
            lines.append(line_to(node))
            await lines[-1].open()
        (server,) = stuck.channels.pids
        os.kill(server, signal.SIGSTOP)
        try:
            waiting = [asyncio.create_task(lines[0].telemetry()) for _ in range(CROWD)]

            answers = await asyncio.gather(*(lines[1].telemetry() for _ in range(CROWD)))
            none_yet = not any(task.done() for task in waiting)
        finally:
            os.kill(server, signal.SIGCONT)
        late = await asyncio.gather(*waiting)
        for line in lines:
            await line.close()

    assert none_yet
    assert len(answers) == len(late) == CROWD


class Engine(socketserver.ThreadingUnixStreamServer):
    """A container engine without containers, which counts who speaks to it at once."""

    daemon_threads = True
    request_queue_size = 2 * CROWD

    def __init__(self, path: Path) -> None:
        self.most = self.now = 0
        self.lock = threading.Lock()
        self.is_crowded = threading.Event()
        super().__init__(str(path), Words)

    def enter(self) -> None:
        """Answer nobody before as many have come as may."""
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            if self.now >= ENGINE_THREADS:
                self.is_crowded.set()
        self.is_crowded.wait(60)

    def leave(self) -> None:
        """One has its answer."""
        with self.lock:
            self.now -= 1


class Words(UnixHandler):
    server: Engine

    def do_GET(self) -> None:  # noqa: N802 (the server asks for it by this name)
        if self.path == "/version":
            self.say(200, b'{"ApiVersion": "1.41"}')
            return
        self.server.enter()
        self.server.leave()  # whoever hears may come again at once
        self.say(404, b'{"message": "no such container"}')


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    found = Engine(tmp_path / "engine.sock")
    with served(found):
        yield found


async def test_a_crowd_that_wants_the_engine_opens_few_forwards(
    tmp_path: Path, engine: Engine
) -> None:
    async with ssh_node(tmp_path) as node:
        put_in_place(node.home)
        line = DockerTransport(
            node.address, bundle(), PATIENCE, engine_socket=str(engine.server_address)
        )
        await line.open()

        preparations = [
            Preparation(run=run_spec("true"), container=Container(image="absent"))
            for _ in range(CROWD)
        ]
        answers = await asyncio.gather(
            *(line.prepare(one) for one in preparations), return_exceptions=True
        )
        await line.close()

    assert all(isinstance(answer, PrepareError) for answer in answers), answers
    assert engine.most == ENGINE_THREADS
    assert node.count_connections() == 1
