"""A run that starts its command once for each of its devices."""

import json

import pytest
from session import NAMESPACE_PLACES, Session, make_spec, node, wait_until

from tessera import protocol
from tessera.protocol import ProtocolError, RunSpec

REPORT = """
import os
import tessera.train as train
train.report(step=int(os.environ["RANK"]), loss=0.5)
print(train.job().local_rank, train.job().world_size)
"""


def ranks(command: str, **changes: object) -> RunSpec:
    """A run of the second member of a gang, with three of its five processes."""
    fields = {
        "devices": [0, 1, 2],
        "processes": 3,
        "env": {"RANK": "2", "WORLD_SIZE": "5", "LOCAL_WORLD_SIZE": "3"},
    }
    return make_spec(command, **{**fields, **changes})


def test_each_rank_runs_the_command_as_written(shared: Session) -> None:
    spec = ranks("cat <<'END'\n$RANK `x` 'é'\nEND\necho \"rank $RANK\"")

    shared.start(spec)
    status = shared.exit_of(spec)

    lines = shared.log(spec).splitlines()
    assert sorted(lines) == sorted(
        line
        for rank in (2, 3, 4)
        for line in (f"[rank{rank}] $RANK `x` 'é'", f"[rank{rank}] rank {rank}")
    )
    assert status.exit is not None
    assert status.exit.code == 0
    text = (shared.directory(spec) / protocol.RANK_FILE).read_text()
    assert text == spec.command + "\n"


def test_one_failed_rank_fails_the_run(shared: Session) -> None:
    spec = ranks('[ "$LOCAL_RANK" = 2 ] && exit 4; sleep 600')

    shared.start(spec)
    status = shared.exit_of(spec)

    assert status.exit is not None
    assert (status.exit.code, status.exit.failure) == (4, "user")


def test_a_stop_is_one_term_for_each_rank(shared: Session) -> None:
    spec = ranks(
        "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done", grace_seconds=30.0
    )
    shared.start(spec)
    wait_until(lambda: shared.log(spec).count("up") == 3, "all ranks are up")

    shared.ask("stop", run_id=spec.run_id, grace_seconds=20, reason="user")
    status = shared.exit_of(spec)

    assert shared.log(spec).count("bye") == 3
    assert status.exit is not None
    assert (status.exit.cause, status.exit.signal) == ("stopped", None)


@pytest.mark.parametrize(("level", "account"), NAMESPACE_PLACES)
def test_ranks_report_in_a_sandbox(level: str, account: str) -> None:
    with node(level, account) as session:
        spec = ranks(f"python3 - <<'END'{REPORT}END", isolation=level)

        session.start(spec)
        status = session.exit_of(spec)

        assert status.exit is not None
        assert (status.exit.code, status.exit.signal) == (0, None), session.log(spec)
        assert sorted(session.log(spec).splitlines()) == [
            f"[rank{rank}] {rank - 2} 5" for rank in (2, 3, 4)
        ]
        reports = map(json.loads, session.log(spec, protocol.STREAM_REPORTS).splitlines())
        assert {(one["step"], one.get("local_rank", 0)) for one in reports if "loss" in one} == {
            (2, 0),
            (3, 1),
            (4, 2),
        }


def test_the_number_of_processes_is_that_of_devices() -> None:
    data = ranks("true").to_json()

    assert RunSpec.from_json(json.loads(json.dumps(data))).processes == 3
    assert "processes" not in make_spec("true").to_json()
    with pytest.raises(ProtocolError, match="number of devices"):
        RunSpec.from_json({**data, "processes": 2})
