"""A node with one declared device, which real processes share."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from session import Session, declare_isolation
from shared_device import SharedDevice

from tessera import protocol


@pytest.fixture
def device(home: Path, tmp_path: Path) -> Iterator[SharedDevice]:
    """The device, on a node whose jobs are not isolated."""
    declare_isolation(home, strongest="none")
    declared = {"levels": ["node", "device"], "devices": [{"type": "slot", "path": []}]}
    (home / protocol.ROOT_DIR / protocol.DEVICES_FILE).write_text(json.dumps(declared))
    session = Session(home)
    try:
        yield SharedDevice(session, tmp_path)
    finally:
        if session.process.poll() is None:
            session.close()
