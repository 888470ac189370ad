"""Parsers of a node's replies: complete values or ``MisbehavedError``."""

import base64
import binascii
from collections.abc import Callable
from typing import Final, TypeVar

from tessera import protocol
from tessera.device_sharing import MAX_GUESTS
from tessera.isolation import ContainerView
from tessera.protocol import Inventory, NodeHello, ProtocolError, RunStatus
from tessera.storage import MAX_SOURCES, StorageProbe
from tessera.wire import Fields
from workers.transports.base import (
    Chunk,
    CompanyReading,
    DeviceReading,
    GuestReading,
    MisbehavedError,
    NodeLoad,
    Saved,
    SuspensionReading,
)

T = TypeVar("T")
MOST_OFFSET: Final = 10**15
"""The names of stored logs have room for such offsets; others would escape the cap and pruning."""


def checked(read: Callable[[protocol.Json], T], reply: protocol.Json) -> T:
    """Return the reply parsed by ``read``.

    Raises:
        MisbehavedError: the reply violates the protocol.
    """
    try:
        return read(reply)
    except ProtocolError as error:
        raise MisbehavedError(f"the node sent an invalid reply: {error.message}") from None


def read_hello(reply: protocol.Json) -> NodeHello:
    """Parse the reply to ``hello``."""
    return NodeHello.from_json(reply.get("hello"))


def read_inventory(reply: protocol.Json) -> Inventory:
    """Parse the reply to ``probe``."""
    return Inventory.from_json(reply.get("inventory"))


def read_storages(reply: protocol.Json) -> list[StorageProbe]:
    """Parse the reply to ``storages``."""
    items = Fields(reply, "reply").items("storages", MAX_SOURCES)
    return [StorageProbe.from_json(item) for item in items]


def read_run(reply: protocol.Json) -> RunStatus:
    """Parse the run in a reply."""
    return RunStatus.from_json(reply.get("run"))


def read_view(reply: protocol.Json) -> ContainerView:
    """Parse the container's view of its node from the reply to ``prepare``."""
    return ContainerView.from_json(reply.get("view"))


def read_runs(reply: protocol.Json) -> tuple[list[RunStatus], str]:
    """Return one page of the reply to ``runs``, and the run before the next page, if any."""
    take = Fields(reply, "runs")
    page = [RunStatus.from_json(item) for item in take.items("runs", 1000)]
    return page, take.text("next", "", 256)


def read_telemetry(reply: protocol.Json) -> NodeLoad:
    """Parse the reply to ``telemetry``."""
    take = Fields(reply.get("telemetry"), "telemetry")
    return NodeLoad(
        devices=tuple(_reading(item) for item in take.items("devices", 4096)),
        load=take.optional_number("load", 0.0, 1e9),
        memory_used_bytes=take.optional_integer("memory_used_bytes", 0, 1 << 60),
        disk_free_bytes=take.optional_integer("disk_free_bytes", 0, 1 << 62),
        disk_total_bytes=take.optional_integer("disk_total_bytes", 0, 1 << 62),
    )


def read_chunk(reply: protocol.Json, *, offset: int, limit: int) -> Chunk:
    """Parse the reply to ``read`` of ``limit`` bytes from ``offset``."""
    take = Fields(reply, "read")
    text = take.text("data", "", protocol.MAX_LINE_BYTES)
    try:
        data = base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, ValueError):
        raise ProtocolError("bad-field", "read.data: must be base64") from None
    start = take.integer("offset", None, 0, MOST_OFFSET)
    end = take.integer("end", None, 0, MOST_OFFSET)
    if len(data) > limit or (data and start < offset) or start + len(data) > end:
        raise ProtocolError("bad-field", "read: the returned part does not match the request")
    return Chunk(data=data, offset=start, end=end, closed=take.boolean("closed", default=False))


def read_renewed(reply: protocol.Json) -> frozenset[str]:
    """Parse the reply to ``renew``: the runs that have a new deadline."""
    deadlines = reply.get("deadlines")
    if not isinstance(deadlines, dict):
        raise ProtocolError("bad-field", "renew.deadlines: must be an object")
    return frozenset(deadlines)


def _reading(item: object) -> DeviceReading:
    take = Fields(item, "telemetry.devices")
    return DeviceReading(
        index=take.integer("index", None, 0, 4095),
        uuid=take.text("uuid", "", 100),
        utilisation=take.optional_number("utilisation", 0.0, 1.0),
        memory_bytes=take.optional_integer("memory_used_bytes", 0, 1 << 60),
        temperature=take.optional_number("temperature", -273.0, 1000.0),
        power=take.optional_number("power", 0.0, 100_000.0),
        company=_company(take),
    )


def _company(device: Fields) -> CompanyReading | None:
    """Parse the state of a coordinator; one that cannot be read counts as unknown.

    Its files are on the node, where the job of the holder may damage them.
    """
    try:
        take = device.inner("company")
        return None if take is None else _read_company(take)
    except ProtocolError:
        return None


def _read_company(take: Fields) -> CompanyReading:
    guests = {one.run_id: one for one in map(_guest, take.items("guests", MAX_GUESTS))}
    return CompanyReading(
        holder_run_id=take.text("holder_run_id", None, 256),
        baseline=take.optional_number("baseline", 0.0, 1e9),
        loss=take.optional_number("loss", -1e6, 1e6),
        loss_low=take.optional_number("loss_low", -1e6, 1e6),
        loss_high=take.optional_number("loss_high", -1e6, 1e6),
        open=take.optional_number("open", 0.0, 1.0),
        account=take.optional_number("account", -1e9, 1e9),
        reserve=take.optional_number("reserve", 0.0, 1e9),
        closings=take.integer("closings", 0, 0, (1 << 31) - 1),
        delay_seconds=take.number("delay_seconds", 0.0, 0.0, 1e10),
        memory_free=take.optional_integer("memory_free", 0, 1 << 60),
        guests=tuple(guests.values()),
        suspension=_suspension(take),
    )


def _suspension(take: Fields) -> SuspensionReading:
    return SuspensionReading(
        tier=take.choice("tier", "", ("", "T0", "T1", "T2")),
        number=take.integer("suspensions", 0, 0, (1 << 31) - 1),
        seconds=take.number("suspended_seconds", 0.0, 0.0, 1e10),
        now_for=take.optional_number("suspended_for", 0.0, 1e10),
    )


def _guest(item: object) -> GuestReading:
    take = Fields(item, "telemetry.devices.company.guests")
    return GuestReading(
        run_id=take.text("run_id", None, 256),
        duty=take.optional_number("duty", 0.0, 1.0),
        memory=take.optional_integer("memory", 0, 1 << 60),
        frozen=take.boolean("frozen", default=False),
        open=is_open if isinstance(is_open := take.raw("open"), bool) else None,
        suspension=_suspension(take),
    )


def read_saved(reply: protocol.Json) -> Saved | None:
    """Parse a checkpoint on a node."""
    inner = Fields(reply, "saved").inner("saved")
    if inner is None:
        return None
    return Saved(
        name=inner.text("name", None, 64),
        step=inner.integer("step", None, 0, 1 << 62),
        sha256=protocol.check_sha256(inner.text("sha256", None, 64)),
        size=inner.integer("size", None, 0, 1 << 62),
    )


def read_piece(reply: protocol.Json, *, limit: int) -> bytes:
    """Parse a piece of a file."""
    data = Fields(reply, "piece").text("data", None, protocol.MAX_LINE_BYTES)
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ProtocolError("bad-field", "piece.data: must be base64") from None
    if len(content) > limit:
        raise ProtocolError("bad-field", "piece.data: is longer than requested")
    return content
