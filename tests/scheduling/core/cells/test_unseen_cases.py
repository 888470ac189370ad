"""Cases that nobody recorded, of the families that were: judged by brute force."""

import json
from typing import Any

import pytest

from scheduling.core.cells.replay import Replay, replay_case
from tests.support.cell_cases import CONFIGS, FAMILIES, Event, events_of
from tests.support.cell_invariants import check
from tests.support.cell_oracle import Oracle

EVENTS = {"count": 0}


def judge(name: str, family: str, seed: int, *, books_every: int = 10) -> Oracle:
    """Replay a trace; every answer is checked, and the books now and then."""
    config = CONFIGS[name]
    oracle = Oracle(config, Replay(config))
    for number, event in enumerate(events_of(config, family, seed)):
        oracle.apply(event)
        EVENTS["count"] += 1
        if number % books_every == 0:
            check(oracle.replay.engine)
    check(oracle.replay.engine)
    return oracle


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_answer_is_what_brute_force_finds(name: str, family: str) -> None:
    oracles = [judge(name, family, seed) for seed in range(6)]

    assert sum(oracle.binds for oracle in oracles) > 20
    assert sum(oracle.waits for oracle in oracles) > 5


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_the_same_events_give_the_same_lines(name: str, family: str) -> None:
    config = CONFIGS[name]
    case: dict[str, Any] = {"id": "x", "events": events_of(config, family, 99)}

    once = [json.dumps(line, sort_keys=True) for line in replay_case(case, config)]
    again = [json.dumps(line, sort_keys=True) for line in replay_case(case, config)]

    assert once == again
    assert len(once) == len(case["events"])


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_restart_in_the_middle_changes_no_answer(name: str) -> None:
    """P11: with one priority nobody waits for victims, so nothing volatile is lost."""
    config = CONFIGS[name]
    for seed in range(100, 106):
        events = [e for e in events_of(config, "same", seed) if e["op"] != "reconfigure"]
        plain, restarted = Replay(config), Replay(config)
        for number, event in enumerate(events):
            if number % 7 == 3:
                assert restarted.apply({"op": "reconfigure", "config": config})["kind"] == "ok"
            one, other = plain.apply(event), restarted.apply(event)
            assert one["kind"] == other["kind"]
            assert plain.group_states() == restarted.group_states()


@pytest.mark.parametrize("family", ["same", "priorities", "lazy", "borrowing"])
@pytest.mark.parametrize("name", ["types", "pinned"])
def test_a_share_is_no_worse_than_a_cluster_of_its_own(name: str, family: str) -> None:
    """P6, through the replay: evictions are driven to the end in both."""
    compared = sum(pair(name, family, seed) for seed in range(8))

    assert compared > 40


def pair(name: str, family: str, seed: int) -> int:
    """Compare one virtual cluster's gangs in the shared cluster and in one of its own."""
    config = CONFIGS[name]
    vc = sorted(config["virtualClusters"])[seed % 2]
    mine = {**config, "virtualClusters": {vc: config["virtualClusters"][vc]}}
    shared, private = Replay(config), Replay(mine)
    ended: set[str] = set()
    compared = 0
    for event in events_of(config, family, seed):
        if event["op"] == "delete":
            shared.apply(event)
            private.apply(event)
        elif event["op"] == "schedule" and event["pod"] not in ended:
            spec = event["spec"]
            here = drive(shared, event)
            if spec["virtualCluster"] == vc and spec["priority"] >= 0:
                there = drive(private, event)
                compared += 1
                if combined(shared, spec) or combined(private, spec):
                    break
                assert (here == "wait") == (there == "wait"), (event, here, there)
    return compared


def drive(replay: Replay, event: Event) -> str:
    """Schedule; who has to go is gone at once."""
    outcome = replay.apply(event)
    if outcome["kind"] == "preempt":
        for pod in outcome["victims"]:
            replay.apply({"op": "delete", "pod": pod})
        outcome = replay.apply(event)
    assert outcome["kind"] in {"bind", "wait", "error"}
    return str(outcome["kind"])


def combined(replay: Replay, spec: dict[str, Any]) -> bool:
    gang = replay.engine.gangs.get(spec["affinityGroup"]["name"])
    if gang is None or gang.roster is None or not gang.guaranteed:
        return False
    holders = gang.roster.ledger.holders
    return any(len(list(holders(spot.node, spot.mask))) > 1 for spot in gang.spots)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_brute_force_agrees_over_a_hundred_thousand_events() -> None:
    start, seed = EVENTS["count"], 1_000
    while EVENTS["count"] - start < 100_000:
        for name in sorted(CONFIGS):
            for family in FAMILIES:
                judge(name, family, seed, books_every=60)
        seed += 1
