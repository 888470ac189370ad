"""A portal with an object store that is away for a minute while twenty jobs run."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.client import ClientError
from tests.faults.accounts import compare
from tests.faults.promises import check_promises, read_ledger
from tests.faults.workload import make_scene_at
from tests.support.object_store import ObjectStoreServer, StoreGate, object_store, store_gate
from tests.support.waiting import wait_until
from tests.support.whole_portal import WholePortal, whole_portal

__all__ = ["object_store", "store_gate"]
pytestmark = [pytest.mark.redis, pytest.mark.soak, pytest.mark.timeout(1500)]

SEED = 20261128
AWAY_SECONDS = 60.0


@pytest.fixture
def portal(
    object_store: ObjectStoreServer, store_gate: StoreGate, tmp_path: Path
) -> Iterator[WholePortal]:
    config = object_store.new_bucket(tmp_path, gate=store_gate)
    settings = {
        "TESSERA_STORAGE": f"s3://{config.bucket}/{config.prefix}",
        "TESSERA_STORAGE_ENDPOINT": config.endpoint,
        "TESSERA_STORAGE_REGION": config.region,
        "TESSERA_STORAGE_ACCESS_KEY": config.access_key,
        "TESSERA_STORAGE_SECRET_KEY": config.secret_key,
    }
    with whole_portal(tmp_path, **settings) as running:
        running.stop_examples()
        running.wait_until_ready()
        yield running
        store_gate.heal()


def test_nothing_is_lost_while_the_store_is_away_for_a_minute(
    portal: WholePortal, store_gate: StoreGate, tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    crowd, drawing, ledger = make_scene_at(portal, tmp_path, rng, "store", longest=20)
    crowd.want(drawing.twenty())
    with crowd.trickle(drawing, every=6.0):
        wait_until(lambda: len(read_ledger(ledger)) > 20, 120, "running jobs")
        store_gate.close()
        away = time.monotonic()
        ends = len([line for line in read_ledger(ledger) if line.what == "end"])
        wait_until(lambda: not portal.is_ready(), 60, "the failing part")
        (newest,) = portal.rows(
            "SELECT l.job_id, u.username FROM workers_logstream l"
            " JOIN scheduling_job j ON j.id = l.job_id JOIN tenants_user u ON u.id = j.owner_id"
            " ORDER BY l.id DESC LIMIT 1"
        )
        with portal.client(newest["username"]) as owner, pytest.raises(ClientError) as unreadable:
            owner.logs(newest["job_id"])
        time.sleep(AWAY_SECONDS - (time.monotonic() - away))
        later = len([line for line in read_ledger(ledger) if line.what == "end"])
        store_gate.open()
    accepted = crowd.wait()

    assert "not readable" in str(unreadable.value)
    assert later > ends, "no job has ended while the store was away"
    portal.wait_until_ready()
    figures = check_promises(portal, accepted, ledger)
    assert figures.jobs >= 20
    account = compare(portal, read_ledger(ledger))
    assert account.wrong == []
    assert account.lines > 100
    wait_until(lambda: portal.storage.state().spooled_bytes == 0, 30, "the empty spool")
    stored = {found.name for found in portal.storage.files("rounds")}
    named = portal.rows("SELECT snapshot_path FROM scheduling_round WHERE snapshot_path <> ''")
    assert {row["snapshot_path"] for row in named} <= stored
    assert not (portal.data / "logs").is_dir() or not list((portal.data / "logs").glob("[0-9]*"))
    print(figures, account, len(stored), "stored rounds")
