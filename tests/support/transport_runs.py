"""Runs on a node through any transport."""

import asyncio
import uuid

from tessera import protocol
from tessera.protocol import RunSpec, RunStatus
from workers.transports.base import Transport

DEADLINE = 20.0


def run_spec(command: str, **changes: object) -> RunSpec:
    attempt = uuid.uuid4().hex
    fields: dict[str, object] = {
        "run_id": protocol.make_run_id(attempt, "worker", 0),
        "job_id": "7",
        "job_name": "hello",
        "attempt": attempt,
        "role": "worker",
        "rank": 0,
        "command": command,
        "lease_seconds": 600.0,
    }
    return RunSpec(**{**fields, **changes})  # type: ignore[arg-type]


async def wait_for_exit(line: Transport, run_id: str) -> RunStatus:
    """Wait for the event that a run has ended."""
    async with asyncio.timeout(DEADLINE):
        async for event in line.events():
            if isinstance(event, RunStatus) and event.run_id == run_id and event.exit:
                return event
    raise AssertionError("the events ended")


async def stop_run(line: Transport, run_id: str) -> None:
    await line.stop(run_id, grace_seconds=0.2, reason="test")
    await wait_for_exit(line, run_id)


async def read_log(line: Transport, run_id: str) -> bytes:
    return (await line.read(run_id, protocol.STREAM_LOG, offset=0, limit=1 << 20)).data
