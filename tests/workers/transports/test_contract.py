"""What every transport promises, tried on each kind of node."""

import asyncio
import dataclasses
import hashlib
import io
import json
import shutil
import tarfile
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest

from tessera import protocol
from tessera.protocol import ArchiveSource, RunSpec, RunStatus
from tests.support.transport_runs import DEADLINE, read_log, run_spec, stop_run, wait_for_exit
from tests.workers.transports.conftest import EVERY_REAL, Place
from workers.transports.base import (
    Container,
    Preparation,
    PrepareError,
    RefusedError,
    Saved,
    Transport,
    UnreachableNodeError,
)


async def start(line: Transport, run: RunSpec, **inputs: object) -> RunStatus:
    await line.prepare(Preparation(run=run, **inputs))  # type: ignore[arg-type]
    return await line.go(run.run_id)


async def in_pieces(state: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(state), 100_000):
        yield state[begin : begin + 100_000]


async def test_it_greets_with_protocol_and_boot_id(place: Place) -> None:
    hello = await place.line().open()

    assert hello.protocol == protocol.PROTOCOL_VERSION
    assert hello.boot_id


async def test_it_tells_what_the_node_has_and_does(place: Place) -> None:
    line = place.line()
    await line.open()

    inventory, telemetry = await line.probe(), await line.telemetry()

    assert inventory.cpus > 0
    assert telemetry.load is not None


async def test_a_run_is_prepared_starts_ends_and_leaves_its_log(place: Place) -> None:
    line = place.line()
    await line.open()
    run = run_spec("echo hello; exit 3")

    started = await start(line, run)
    status = await wait_for_exit(line, run.run_id)

    assert started.pid
    assert (status.phase, status.exit and status.exit.code) == (protocol.EXITED, 3)
    assert await read_log(line, run.run_id) == b"hello\n"


async def test_preparing_again_changes_nothing(place: Place) -> None:
    line = place.line()
    await line.open()
    run = run_spec("sleep 60")

    await line.prepare(Preparation(run=run))
    await line.prepare(Preparation(run=run))

    assert [status.phase for status in await line.runs()] == [protocol.PREPARED]


async def test_a_run_starts_once_however_often_it_is_told(place: Place) -> None:
    line = place.line()
    await line.open()
    run = run_spec("sleep 60")
    await line.prepare(Preparation(run=run))

    pids = {(await line.go(run.run_id)).pid for _ in range(3)}

    assert len(pids) == 1
    await stop_run(line, run.run_id)


async def test_going_without_preparing_is_refused(place: Place) -> None:
    line = place.line()
    await line.open()

    with pytest.raises(RefusedError):
        await line.go(run_spec("true").run_id)


async def test_a_prepared_run_can_be_cancelled_and_then_never_starts(place: Place) -> None:
    line = place.line()
    await line.open()
    run = run_spec("true")
    await line.prepare(Preparation(run=run))

    await line.cancel(run.run_id)
    await line.cancel(run.run_id)

    assert await line.runs() == []
    with pytest.raises(RefusedError):
        await line.go(run.run_id)


async def test_a_started_run_is_not_cancelled(place: Place) -> None:
    line = place.line()
    await line.open()
    run = run_spec("sleep 60")
    await start(line, run)

    with pytest.raises(RefusedError) as refused:
        await line.cancel(run.run_id)

    assert refused.value.code == "already-started"
    await stop_run(line, run.run_id)


async def test_a_run_that_is_told_to_stop_says_so_at_its_end(place: Place) -> None:
    line = place.line()
    await line.open()
    run = run_spec("sleep 60")
    await start(line, run)

    await line.stop(run.run_id, grace_seconds=5.0, reason="preempt")
    status = await wait_for_exit(line, run.run_id)

    assert status.exit is not None
    assert status.exit.cause == protocol.CAUSE_STOPPED


async def test_stopping_what_is_not_there_is_refused(place: Place) -> None:
    line = place.line()
    await line.open()

    with pytest.raises(RefusedError):
        await line.stop(run_spec("true").run_id, grace_seconds=1.0, reason="test")


async def test_only_a_run_that_runs_takes_settings(place: Place) -> None:
    line = place.line()
    await line.open()
    run = run_spec("sleep 60")
    wishes = {"batch": 64, "accumulation": 2, "layout": [[2], [1]], "throttle": 0.5}
    await line.prepare(Preparation(run=run))

    with pytest.raises(RefusedError, match="not-running"):
        await line.tune(run.run_id, wishes)
    await line.go(run.run_id)
    await line.tune(run.run_id, wishes)
    await stop_run(line, run.run_id)
    with pytest.raises(RefusedError, match="not-running"):
        await line.tune(run.run_id, wishes)


async def test_output_is_told_and_read_by_offset(place: Place) -> None:
    line = place.line()
    await line.open()
    run = run_spec("echo 0123456789; sleep 60")
    await start(line, run)
    async with asyncio.timeout(DEADLINE):
        async for event in line.events():
            if event.log_end == 11:
                break

    piece = await line.read(run.run_id, protocol.STREAM_LOG, offset=4, limit=3)
    beyond = await line.read(run.run_id, protocol.STREAM_LOG, offset=11, limit=3)

    assert (piece.data, piece.offset, piece.end, piece.closed) == (b"456", 4, 11, False)
    assert (beyond.data, beyond.end) == (b"", 11)
    await stop_run(line, run.run_id)
    assert (await line.read(run.run_id, protocol.STREAM_LOG, offset=11, limit=3)).closed


async def test_renewal_is_confirmed_for_runs_that_are_there(place: Place) -> None:
    line = place.line()
    await line.open()
    run, absent = run_spec("sleep 60"), run_spec("sleep 60")
    await start(line, run)

    confirmed = await line.renew([run.run_id, absent.run_id], 60.0)

    assert confirmed == {run.run_id}
    await stop_run(line, run.run_id)


async def test_only_a_run_that_has_ended_is_removed(place: Place) -> None:
    line = place.line()
    await line.open()
    run = run_spec("sleep 60")
    await start(line, run)

    with pytest.raises(RefusedError):
        await line.remove(run.run_id)
    await stop_run(line, run.run_id)
    await line.remove(run.run_id)
    await line.remove(run.run_id)

    assert await line.runs() == []


async def test_a_run_goes_on_when_the_line_breaks_and_is_found_again(place: Place) -> None:
    first, second = place.line(), place.line()
    await first.open()
    run = run_spec("sleep 60")
    started = await start(first, run)

    place.node.drop_connections()
    with pytest.raises(UnreachableNodeError):
        async for _ in first.events():
            pass
    await second.open()

    assert [(s.run_id, s.phase, s.pid) for s in await second.runs()] == [
        (run.run_id, protocol.RUNNING, started.pid)
    ]
    await stop_run(second, run.run_id)


async def test_a_line_that_is_closed_answers_nobody(place: Place) -> None:
    line = place.line()
    await line.open()

    await line.close()

    with pytest.raises(UnreachableNodeError):
        await line.runs()


@pytest.mark.parametrize("place", EVERY_REAL, indirect=True)
class TestOnRealNodes:
    """What needs real processes."""

    @pytest.fixture
    async def line(self, place: Place) -> Transport:
        line = place.line()
        await line.open()
        return line

    async def test_commands_and_values_reach_the_job_as_they_were_written(
        self, line: Transport
    ) -> None:
        text = "a 'b' \"c\" $(id) `id` $HOME \\ ; & | > ä 中\n\tend"
        run = run_spec('printf "%s" "$WORDS"', env={"WORDS": text})

        await start(line, run)
        await wait_for_exit(line, run.run_id)

        assert (await read_log(line, run.run_id)).decode() == text

    async def test_secrets_come_as_files_that_are_gone_at_the_end(
        self, line: Transport, place: Place
    ) -> None:
        run = run_spec(
            'cat "$TESSERA_JOB_SECRETS_DIR/token"; stat -c %a "$TESSERA_JOB_SECRETS_DIR/token"'
        )

        await start(line, run, secrets={"token": "s3cr3t\n"})
        await wait_for_exit(line, run.run_id)

        assert await read_log(line, run.run_id) == b"s3cr3t\n600\n"
        left = [
            p for p in place.node.home.rglob("*") if p.is_file() and b"s3cr3t" in p.read_bytes()
        ]
        assert [p.parent.name for p in left] == ["log"]
        assert not any("s3cr3t" in command for command in place.node.commands)

    async def test_an_uploaded_archive_is_unpacked_for_the_job(
        self, line: Transport, tmp_path: Path
    ) -> None:
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w:gz") as packed:
            body = b"payload" * 100_000
            entry = tarfile.TarInfo("inner/file.txt")
            entry.size = len(body)
            packed.addfile(entry, io.BytesIO(body))
        digest = hashlib.sha256(content.getvalue()).hexdigest()
        archive = tmp_path / digest
        archive.write_bytes(content.getvalue())
        run = run_spec("wc -c < inner/file.txt", source_archive=ArchiveSource(sha256=digest))

        await start(line, run, archive=archive)
        await wait_for_exit(line, run.run_id)

        assert (await read_log(line, run.run_id)).strip() == b"700000"

    async def test_an_archive_that_is_not_stored_any_more_is_a_failed_preparation(
        self, line: Transport, tmp_path: Path
    ) -> None:
        run = run_spec("true", source_archive=ArchiveSource(sha256="0" * 64))

        with pytest.raises(PrepareError) as refused:
            await line.prepare(Preparation(run=run, archive=tmp_path / "absent"))

        assert refused.value.code == "archive-missing"

    async def test_a_port_that_is_taken_is_a_failed_preparation(self, line: Transport) -> None:
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        run = run_spec("true", ports=[port], bind_host="127.0.0.1")

        async with server:
            with pytest.raises(PrepareError) as refused:
                await line.prepare(Preparation(run=run))

        assert refused.value.failure_class == protocol.NODE
        assert await line.runs() == []

    async def test_an_image_on_a_node_without_an_engine_is_a_failed_preparation(
        self, line: Transport
    ) -> None:
        with pytest.raises(PrepareError) as refused:
            await line.prepare(Preparation(run=run_spec("true"), container=Container(image="x")))

        assert refused.value.failure_class == protocol.IMAGE

    async def test_a_second_spec_under_the_same_name_is_refused(self, line: Transport) -> None:
        run = run_spec("true")
        await line.prepare(Preparation(run=run))

        with pytest.raises(PrepareError) as refused:
            await line.prepare(Preparation(run=dataclasses.replace(run, command="false")))

        assert refused.value.code == "spec-differs"

    async def test_the_nodes_part_is_installed_where_it_is_missing_or_damaged(
        self, place: Place
    ) -> None:
        (found,) = place.node.home.glob(".tessera/*/node.pyz")
        whole = found.read_bytes()
        there = found.stat()
        await place.line().open()
        assert found.stat().st_ino == there.st_ino

        found.write_bytes(whole[: len(whole) // 2])
        await place.line().open()
        assert found.read_bytes() == whole

        shutil.rmtree(found.parent)
        await place.line().open()
        assert found.read_bytes() == whole

    async def test_many_requests_share_one_line(self, line: Transport, place: Place) -> None:
        runs = [run_spec(f"echo {number}") for number in range(20)]

        await asyncio.gather(*(start(line, run) for run in runs))
        waiting = {run.run_id for run in runs}
        async with asyncio.timeout(DEADLINE):
            async for event in line.events():
                if isinstance(event, RunStatus) and event.exit:
                    waiting.discard(event.run_id)
                if not waiting:
                    break

        assert place.node.count_connections() == 1
        found = {s.run_id: s.exit and s.exit.code for s in await line.runs()}
        assert found == {run.run_id: 0 for run in runs}

    async def test_settings_lie_where_the_job_looks_for_them(self, line: Transport) -> None:
        run = run_spec(
            'while [ ! -e "$TESSERA_JOB_BATCH" ]; do sleep 0.05; done; cat "$TESSERA_JOB_BATCH"'
        )
        await start(line, run)

        await line.tune(run.run_id, {"batch": 64, "accumulation": 2})
        await wait_for_exit(line, run.run_id)

        assert json.loads(await read_log(line, run.run_id)) == {"batch": 64, "accumulation": 2}

    @pytest.mark.parametrize(
        "wishes",
        [{"batch": 0}, {"throttle": 2}, {"layout": [[]]}, {"layout": [["2"]]}, {"other": 1}, None],
    )
    async def test_settings_that_no_job_understands_are_refused(
        self, line: Transport, wishes: dict[str, object]
    ) -> None:
        run = run_spec("sleep 60")
        await start(line, run)

        with pytest.raises(RefusedError, match="bad-field"):
            await line.tune(run.run_id, wishes or {"layout": {}})

        await stop_run(line, run.run_id)

    async def test_a_checkpoint_is_handed_on_whole_and_verified(self, line: Transport) -> None:
        state = bytes(range(256)) * 4096
        sha256 = hashlib.sha256(state).hexdigest()
        saved = Saved(name="step-000000000007", step=7, sha256=sha256, size=len(state))
        job, other = uuid.uuid4().hex, uuid.uuid4().hex
        torn = dataclasses.replace(saved, sha256="0" * 64)

        assert await line.saved("here", job) is None
        await line.put_saved("here", job, saved, in_pieces(state))
        found = await line.saved("here", job)
        content = b""
        while piece := await line.read_saved("here", job, name=saved.name, offset=len(content)):
            content += piece
        with pytest.raises(RefusedError, match="bad-blob"):
            await line.put_saved("here", other, torn, in_pieces(state))

        assert found == saved
        assert content == state
        assert await line.saved("here", other) is None

    async def test_another_state_of_the_same_step_comes_after_the_one_that_is_there(
        self, line: Transport
    ) -> None:
        job, states = uuid.uuid4().hex, (b"what was learnt", b"what was learnt otherwise")
        first, second = (
            Saved(
                name="step-000000000007",
                step=7,
                sha256=hashlib.sha256(state).hexdigest(),
                size=len(state),
            )
            for state in states
        )

        for saved, state in ((first, states[0]), (second, states[1]), (second, states[1])):
            await line.put_saved("here", job, saved, in_pieces(state))
        newest = await line.saved("here", job)

        assert newest is not None
        assert newest.sha256 == second.sha256
        assert await line.saved("here", job, before=newest.name) == first
        assert await line.saved("here", job, before=first.name) is None

    async def test_a_job_gets_no_bytes_that_others_have_uploaded(self, line: Transport) -> None:
        state = b"what another tenant has learnt"
        sha256 = hashlib.sha256(state).hexdigest()
        saved = Saved(name="step-000000000001", step=1, sha256=sha256, size=len(state))
        thief = uuid.uuid4().hex
        await line.put_saved("here", uuid.uuid4().hex, saved, in_pieces(state))

        with pytest.raises(RefusedError):
            await line.put_saved("here", thief, saved, in_pieces(b""))

        assert await line.saved("here", thief) is None

    @pytest.mark.parametrize("name", ["../step-000000000007", "state", "step-7", ".."])
    async def test_only_checkpoints_are_read_by_that_way(self, line: Transport, name: str) -> None:
        with pytest.raises(RefusedError, match="bad-field"):
            await line.read_saved("here", "7", name=name, offset=0)

    async def test_reports_are_read_like_the_log(self, line: Transport) -> None:
        run = run_spec('echo \'{"step": 1, "samples": 8}\' >> "$TESSERA_JOB_REPORTS"')

        await start(line, run)
        status = await wait_for_exit(line, run.run_id)
        chunk = await line.read(run.run_id, protocol.STREAM_REPORTS, offset=0, limit=1000)

        assert json.loads(chunk.data) == {"step": 1, "samples": 8}
        assert status.reports_end == chunk.end == len(chunk.data)

    async def test_a_node_that_shows_another_key_is_not_spoken_to(self, place: Place) -> None:
        line = place.line()
        address = dataclasses.replace(place.node.address, host_key=_another_key())
        line._address = address  # type: ignore[attr-defined]

        with pytest.raises(UnreachableNodeError, match="a host key other than"):
            await line.open()

        assert place.node.commands == []


def _another_key() -> str:
    return asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
