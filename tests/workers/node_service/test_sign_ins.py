"""Hundreds of sign-ins at once: few at a time, and none waits for a dead node."""

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from tests.support.fake_transport import FakeNode, FakeTransport, until
from workers.conf import WorkerSettings
from workers.node_service.connection import NodeConnection, SignIns
from workers.node_service.ports import NodeAddress

ADDRESS = NodeAddress(node_id=1, name="node-1", host="node-1", port=22, user="u", host_key="")


async def test_only_so_many_sign_in_at_once_and_each_has_its_turn() -> None:
    sign_ins = SignIns(most=3, slow_seconds=60)
    running, most, done = 0, 0, []

    async def sign_in(number: int) -> None:
        nonlocal running, most
        async with sign_ins.place():
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
        done.append(number)

    async with asyncio.timeout(60):
        await asyncio.gather(*(sign_in(number) for number in range(50)))

    assert most == 3
    assert sorted(done) == list(range(50))


async def test_slow_sign_ins_do_not_delay_others_and_free_their_place_once() -> None:
    sign_ins = SignIns(most=2, slow_seconds=0.05)
    over = asyncio.Event()
    inside = 0

    async def hang() -> None:
        nonlocal inside
        async with sign_ins.place():
            inside += 1
            await over.wait()

    dead = [asyncio.create_task(hang()) for _ in range(6)]
    await until(lambda: inside == 6)
    over.set()
    await asyncio.gather(*dead)

    # Each place was freed once: no more than two are free now.
    entered = 0

    async def enter() -> None:
        nonlocal entered
        async with sign_ins.place():
            entered += 1
            assert entered <= 2
            await asyncio.sleep(0)
            entered -= 1

    await asyncio.gather(*(enter() for _ in range(20)))


class Service:
    """A service in which all places are taken until the test frees one."""

    is_alone = False

    def __init__(self, folder: Path, node: FakeNode) -> None:
        self.settings = WorkerSettings(data_dir=folder, installation="here")
        self.sign_ins = SignIns(most=1, slow_seconds=600)
        self._node = node

    def connect(self, address: NodeAddress, progress: Any) -> FakeTransport:
        return self._node.transport()

    def sign_in(self) -> AbstractAsyncContextManager[None]:
        return self.sign_ins.place()

    def post(self, news: object) -> None:
        """Drop it."""


async def test_the_wait_for_a_place_is_not_silence_of_the_node(tmp_path: Path) -> None:
    node = FakeNode(reachable=False)
    service = Service(tmp_path, node)
    connection = NodeConnection(ADDRESS, service)  # type: ignore[arg-type]
    begun = time.monotonic()
    async with service.sign_ins.place():
        carrying = asyncio.create_task(connection.carry())
        await until(lambda: connection._queued_at is not None)
        waiting = connection.silence(time.monotonic() + 3600)
    await until(lambda: connection._failures > 0)
    since_begin = time.monotonic() - begun
    refused = connection.silence(time.monotonic() + 3600)
    carrying.cancel()
    await asyncio.gather(carrying, return_exceptions=True)

    assert waiting.seconds <= since_begin
    assert refused.seconds >= 3600
