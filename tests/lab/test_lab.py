"""The experiments of docs/lab.md through the whole portal, judged by its REST answers alone.

The tests follow one another as the document does; each leaves the cluster empty.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from portal.supervisor.redis_server import NoRedisError, find_redis
from tests.lab.document import Reader, blocks, unnamed_blocks
from tests.lab.outsider import HOLDING, Outsider
from tests.support.whole_portal import ADMIN_PASSWORD, PASSWORD, WholePortal, whole_portal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholePortal]:
    try:
        find_redis()
    except NoRedisError as error:
        pytest.skip(str(error))
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    with whole_portal(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="module")
def reader(portal: WholePortal) -> Reader:
    passwords = dict(PASSWORD.findall(portal.output.read_text()))
    found = Reader(
        {
            "TESSERA_URL": portal.url,
            "ADMIN_PASSWORD": ADMIN_PASSWORD,
            "ALICE_PASSWORD": passwords["alice"],
            "BOB_PASSWORD": passwords["bob"],
        }
    )
    found.keep("sign-in", "ADMIN", "ALICE", "BOB")
    return found


@pytest.fixture(scope="module")
def outside(portal: WholePortal, reader: Reader) -> Outsider:
    return Outsider(portal.url, reader.variables["ADMIN"])


def test_every_command_of_the_document_has_a_name_by_which_it_is_run_here() -> None:
    here = Path(__file__).read_text()

    assert unnamed_blocks() == []
    assert [name for name in blocks() if f'"{name}"' not in here] == []


def test_no_command_changes_the_readers_shell_for_those_that_come_after_it() -> None:
    leaving = re.compile(r"^(export\b|\w+=\S*\s*$)", re.MULTILINE)

    assert [name for name, text in blocks().items() if leaving.search(text)] == ["sign-in"]


def test_the_configuration_is_tried_and_then_taken_over(reader: Reader, outside: Outsider) -> None:
    reader.type("clear-demo")
    outside.wait_until_empty()

    tried = json.loads(reader.type("import-dry-run"))

    assert tried["dry_run"] is True
    assert tried["virtual_clusters_created"] == ["vision", "language"]
    assert set(tried["virtual_clusters_archived"]) == {"vision-a", "vision-b", "language-a"}
    assert (tried["devices_added"], tried["devices_removed"]) == (0, 0)
    names = {vc["name"] for vc in outside.get("cluster/")["virtual_clusters"]}
    assert names == {"vision-a", "vision-b", "language-a"}

    done = json.loads(reader.type("import"))

    assert done["version"] > tried["version"]
    shares = {vc["name"]: vc for vc in outside.get("cluster/")["virtual_clusters"]}
    assert {name: vc["devices"]["guarantee"] for name, vc in shares.items()} == {
        "vision": 12,
        "language": 10,
    }
    detail = outside.get(f"virtual-clusters/{shares['vision']['id']}/")
    assert [pin["name"] for pin in detail["pinned"]] == ["vision-bench"]
    assert len(outside.cells("node")) == 3
    assert len(outside.cells("socket")) == 6
    assert "language" in reader.type("see-shares")


def test_the_load_of_another_never_keeps_anybody_from_the_guaranteed_shape(
    reader: Reader, outside: Outsider
) -> None:
    reader.type("safety-rush")
    mine = outside.wait_for("half-node", "running", 2)
    outside.wait_for("borrow-pairs", "running", 8)
    outside.wait_for_reason("half-node", "vc-guarantee-in-use", 3)
    before = {job["id"]: outside.devices(job) for job in mine}
    assert all(outside.is_in_one("socket", devices) for devices in before.values())
    assert "vc-guarantee-in-use" in reader.type("safety-why")

    reader.type("safety-owner")
    (owner,) = outside.wait_for("whole-node", "running")

    placed = outside.devices(owner)
    assert len(placed) == 8
    assert outside.is_in_one("node", placed)
    assert {outside.occupants()[device]["job"] for device in placed} == {owner["id"]}
    # Those who own what they hold have not been touched; those who borrowed were told for whom.
    assert {job["id"]: outside.devices(job) for job in mine} == before
    assert [outside.kinds(job).count("preempt") for job in mine] == [0, 0]
    left = [job for job in outside.jobs("borrow-pairs") if "preempt" in outside.kinds(job)]
    assert left
    for job in left:
        event = next(e for e in outside.history(job) if e["kind"] == "preempt")
        assert event["detail"]["for_job"] == owner["id"]

    reader.type("safety-end")
    outside.wait_until_empty()


def test_a_higher_class_goes_first_and_the_lower_one_goes_on_where_it_was(
    reader: Reader, outside: Outsider
) -> None:
    reader.type("priority-test")
    (low,) = outside.wait_for("test-node", "running")
    reader.type("priority-prod")
    (high,) = outside.wait_for("short-node", "succeeded")
    outside.wait("attempt 2", lambda: len(outside.attempts(low)) == 2)
    outside.wait_for("test-node", "running")

    first, second = outside.attempts(low)
    (short,) = outside.attempts(high)
    assert first["ended_at"] <= short["created_at"]
    assert short["ended_at"] <= second["created_at"]
    assert outside.devices(high) == frozenset(
        (member["node"], index) for member in first["members"] for index in member["devices"]
    )
    preempted = next(e for e in outside.history(low) if e["kind"] == "preempt")
    assert preempted["detail"]["for_job"] == high["id"]
    assert _went_on(outside, low)
    assert "saved step" in reader.type("priority-log")

    reader.type("priority-end")
    outside.wait_until_empty()


def test_idle_cells_are_lent_and_given_back_when_their_owner_comes(
    reader: Reader, outside: Outsider
) -> None:
    reader.type("borrow-busy")
    (busy,) = outside.wait_for("whole-node", "running")
    reader.type("borrow")
    (borrower,) = outside.wait_for("borrow-node", "running")
    assert outside.attempts(borrower)[0]["opportunistic"] is True
    borrowed = outside.devices(borrower)
    assert len(borrowed) == 8
    assert not borrowed & outside.devices(busy)

    reader.type("borrow-owner")
    (owner,) = outside.wait_for("half-node", "running")

    assert outside.devices(owner) < borrowed
    assert outside.is_in_one("socket", outside.devices(owner))
    first = outside.attempts(borrower)[0]
    assert first["ended_at"] <= outside.attempts(owner)[0]["created_at"]
    outside.wait_for_reason("borrow-node", "opportunistic-no-idle")
    assert "opportunistic-no-idle" in reader.type("borrow-why")
    assert outside.kinds(busy).count("preempt") == 0

    reader.type("borrow-owner-leaves")
    outside.wait("attempt 2", lambda: len(outside.attempts(borrower)) == 2)
    outside.wait_for("borrow-node", "running")

    assert _went_on(outside, borrower)
    (member,) = outside.attempts(borrower)[0]["members"]
    assert (member["stopping"], member["exit_cause"], member["exit_code"]) == (True, "stopped", 0)
    told = [kind for kind in outside.kinds(borrower) if kind in ("admit", "preempt", "released")]
    assert told == ["admit", "preempt", "released", "admit"]
    states = [event["state"] for event in outside.history(borrower)]
    assert [state for state in states if state in ("preempting", "queued")] == [
        "queued",
        "preempting",
        "queued",
    ]
    assert "A guaranteed job reclaims" in reader.type("borrow-history")

    reader.type("borrow-end")
    outside.wait_until_empty()


def test_quota_moves_while_jobs_run_and_nobody_is_evicted(
    reader: Reader, outside: Outsider
) -> None:
    reader.type("move-start")
    jobs = outside.wait_for("half-node", "running", 2)
    before = {job["id"]: outside.devices(job) for job in jobs}

    tried = json.loads(reader.type("move-dry-run"))

    (loser,) = tried["become_opportunistic"]
    assert tried["fits"] is True
    assert loser["id"] in before
    assert [a["opportunistic"] for job in jobs for a in outside.attempts(job)] == [False, False]

    done = json.loads(reader.type("move"))

    assert [job["id"] for job in done["become_opportunistic"]] == [loser["id"]]
    outside.wait("the loss", lambda: "guarantee_lost" in outside.kinds(loser))
    borrowing = {job["id"]: outside.attempts(job)[0]["opportunistic"] for job in jobs}
    assert borrowing == {job["id"]: job["id"] == loser["id"] for job in jobs}
    occupants = outside.occupants()
    for number, devices in before.items():
        assert {occupants[device]["job"] for device in devices} == {number}
        assert {occupants[d]["opportunistic"] for d in devices} == {number == loser["id"]}

    reader.type("move-stop-guaranteed")
    outside.wait("the return", lambda: "guarantee_regained" in outside.kinds(loser))

    assert [a["opportunistic"] for a in outside.attempts(loser)] == [False]
    assert outside.devices(loser) == before[loser["id"]]
    assert "preempt" not in outside.kinds(loser)
    reader.type("move-history")

    reader.type("move-back")
    outside.wait_until_empty()
    shares = {vc["name"]: vc for vc in outside.get("cluster/")["virtual_clusters"]}
    assert shares["language"]["devices"]["guarantee"] == 10


def test_a_gang_starts_whole_or_not_at_all_and_two_never_block_each_other(
    reader: Reader, outside: Outsider
) -> None:
    reader.type("gang-busy")
    outside.wait_for("half-node", "running")
    reader.type("gang")
    outside.wait_for_reason("gang", "vc-guarantee-in-use")
    assert "vc-guarantee-in-use" in reader.type("gang-why")
    assert outside.attempts(outside.job("gang")) == []
    assert len(outside.occupants()) == 4

    reader.type("gang-go")
    # The demo may have completed a job of this name before: the newest one counts.
    outside.wait("the gang", lambda: outside.job("gang")["state"] == "succeeded")
    gang = outside.job("gang")

    (attempt,) = outside.attempts(gang)
    assert len(attempt["members"]) == 2
    for member in attempt["members"]:
        devices = frozenset((member["node"], index) for index in member["devices"])
        assert len(devices) == 4
        assert outside.is_in_one("socket", devices)
    assert {outside.log(gang, 1, rank).strip() for rank in (0, 1)} == {
        "rank 0 of 2 begins",
        "rank 1 of 2 begins",
    }

    reader.type("two-gangs")
    (first,) = outside.wait_for("first-gang", "succeeded")
    (second,) = outside.wait_for("second-gang", "succeeded")

    one, other = sorted(
        (outside.attempts(job)[0] for job in (first, second)), key=lambda a: a["created_at"]
    )
    assert one["ended_at"] <= other["created_at"]
    assert all(len(attempt["members"]) == 2 for attempt in (one, other))
    outside.wait_until_empty()


def test_instances_of_a_job_that_is_no_gang_start_as_room_comes(
    reader: Reader, outside: Outsider
) -> None:
    reader.type("one-by-one")
    running = outside.wait_for("one-by-one", "running", 2)
    outside.wait_for_reason("one-by-one", "vc-guarantee-in-use", 2)
    assert all(outside.is_in_one("socket", outside.devices(job)) for job in running)

    reader.type("one-by-one-next")
    outside.wait_for("one-by-one", "stopped")
    outside.wait_for("one-by-one", "running", 2)

    states = [job["state"] for job in outside.jobs("one-by-one")]
    assert len([state for state in states if state in HOLDING]) == 2
    assert len([job for job in running if len(outside.attempts(job)) != 1]) == 0
    reader.type("one-by-one-end")
    outside.wait_until_empty()


def test_a_pinned_cell_is_a_certain_one_and_lent_like_any_other(
    reader: Reader, outside: Outsider
) -> None:
    reader.type("pinned-lent")
    lent = {
        job["id"]: outside.devices(job) for job in outside.wait_for("borrow-pairs", "running", 12)
    }

    reader.type("pinned")
    (bench,) = outside.wait_for("bench", "running")

    placed = outside.devices(bench)
    assert {node for node, _ in placed} == {"demo-3"}
    assert len(placed) == 4
    assert outside.is_in_one("socket", placed)
    pairs = {job["id"]: job for job in outside.jobs("borrow-pairs") if job["id"] in lent}
    left = {number for number, job in pairs.items() if "preempt" in outside.kinds(job)}
    assert left == {number for number, devices in lent.items() if devices & placed}
    assert len(left) == 2
    assert outside.attempts(bench)[0]["opportunistic"] is False

    reader.type("pinned-again")
    outside.wait_for_reason("bench", "vc-guarantee-in-use")
    assert "vc-guarantee-in-use" in reader.type("pinned-why")

    reader.type("pinned-end")
    outside.wait_until_empty()


def test_a_guest_uses_a_device_of_its_tenant_until_the_owner_wants_it_alone(
    reader: Reader, outside: Outsider
) -> None:
    assert "Device sharing is on." in reader.type("share-on")
    reader.type("share-holder")
    (holder,) = outside.wait_for("lab-holder", "running")
    reader.type("share-rest")
    outside.wait_for("borrow-pairs", "running", 11)
    reader.type("share-guests")
    (guest,) = outside.wait_for("lab-guest", "running")

    outside.wait_for_reason("lab-stranger", "no-host-for-guest")
    sharing = outside.get(f"jobs/{holder['id']}/sharing/")
    (device,) = sharing["devices"]
    assert (sharing["role"], device["limit"]) == ("holder", 0.05)
    assert [other["job_id"] for other in device["others"]] == [guest["id"]]
    assert (device["node"], device["index"]) in outside.devices(holder)
    assert "lab-guest" in reader.type("share-job")
    why = reader.type("share-why")
    assert "running as a guest on device" in why
    assert "no-host-for-guest" in why

    reader.type("share-alone")
    # Its holder is no host any more, so the reason is that of any job without an idle device.
    outside.wait_for_reason("lab-guest", "opportunistic-no-idle")

    assert outside.kinds(holder).count("preempt") == 0
    reader.type("share-end")
    outside.wait_until_empty()


def test_in_the_end_no_device_was_ever_held_twice_and_every_command_was_run(
    reader: Reader, outside: Outsider
) -> None:
    outside.check_nothing_is_shared()
    assert reader.done == list(blocks())


def _went_on(outside: Outsider, job: dict[str, object]) -> bool:
    """Whether the second attempt begins at the step that the first one saved."""
    outside.wait("the first lines", lambda: "begins at" in outside.log(job, 2))
    saved = re.search(r"saved step (\d+)", outside.log(job, 1))
    begun = re.search(r"begins at step (\d+)", outside.log(job, 2))
    return saved is not None and begun is not None and saved[1] == begun[1]
