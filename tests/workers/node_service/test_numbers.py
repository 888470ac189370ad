"""Telemetry of a node by the numbers of its GPUs, while an inventory waits to be written."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.fake_transport import FakeNode, FakeTransport, until
from workers.conf import WorkerSettings
from workers.node_service.ports import NodeAddress
from workers.node_service.session import NodeSession
from workers.services import reconcile, telemetry
from workers.services.node_reports import NodeReport, Probed
from workers.transports.base import DeviceReading, NodeLoad

ADDRESS = NodeAddress(node_id=1, name="node-1", host="node-1", port=22, user="u", host_key="")
OLD, NEW = 3, 5


class Line(FakeTransport):
    """A node with one GPU."""

    async def telemetry(self) -> NodeLoad:
        return NodeLoad(devices=(DeviceReading(index=0, uuid="GPU-1", utilisation=0.5),))


class Service:
    """A service whose writer waits: an inventory in the queue changes the number of the GPU."""

    is_alone = True

    def __init__(self, folder: Path) -> None:
        self.settings = WorkerSettings(
            data_dir=folder, installation="here", telemetry_every=0.01, probe_every=600.0
        )
        self.number = OLD
        self.written = asyncio.Event()
        self.seen: list[int] = []
        self.probed = 0

    def wake(self) -> None:
        """Nothing is directed."""

    def post(self, news: NodeReport) -> None:
        self.probed += isinstance(news, Probed)

    async def confirm(self, news: NodeReport) -> bool:
        self.post(news)
        await self.written.wait()
        return True

    async def flush(self, node_id: int) -> None:
        """Nothing waits but the inventory."""

    async def read(self, function: Callable[..., Any], **_: Any) -> Any:
        answers = {
            telemetry.device_numbers: {"GPU-1": self.number},
            reconcile.members_of_runs: {},
        }
        return answers.get(function, [])

    def send_signal(self, signal: object, *, reading: dict[str, Any], **_: Any) -> None:
        self.seen.append(len(reading["utilisation"]) - 1)


async def test_a_reading_after_the_write_of_an_inventory_has_its_numbers(tmp_path: Path) -> None:
    service, line = Service(tmp_path), Line(FakeNode())
    session = NodeSession(ADDRESS, line, service, lambda: None)  # type: ignore[arg-type]
    staying = asyncio.create_task(session.stay(await line.open()))
    await until(lambda: service.probed and OLD in service.seen, seconds=10)

    service.number = NEW
    service.written.set()
    await until(lambda: service.seen[-1] == NEW, seconds=10)

    staying.cancel()
    await asyncio.gather(staying, return_exceptions=True)
    assert set(service.seen) == {OLD, NEW}
