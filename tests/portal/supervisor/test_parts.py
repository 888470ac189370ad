"""Options, files, leftovers, silence and Redis of the supervisor, one at a time."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.db import OperationalError

from portal.supervisor.children import Child, end_leftovers, record_children, start_ticks
from portal.supervisor.files import DataDir
from portal.supervisor.options import Options, OptionsError, child_environment, read_options
from portal.supervisor.redis_server import answers, find_redis, redis_command, socket_path
from portal.supervisor.silence import (
    SILENT_SECONDS,
    START_SECONDS,
    SilenceWatch,
    read_heartbeats,
    with_probes,
)
from portal.supervisor.startup import listen
from portal.supervisor.supervisor import StartupError
from tests.support.databases import migrated_template, real_database
from tests.support.interleaving import before_query, raising
from tests.support.waiting import is_alive, wait_until

__all__ = ["migrated_template", "real_database"]

MakeChild = Callable[..., Child]
SLEEP = "import time; time.sleep(60)"
NOW = datetime(2026, 3, 2, tzinfo=UTC)


# -- options -------------------------------------------------------------------------------------


def test_a_password_in_the_environment_is_taken_and_reaches_no_child() -> None:
    environ = {"TESSERA_ADMIN_PASSWORD": "pw", "TESSERA_DATA_DIR": "/data"}

    options = read_options([], environ)
    environment = child_environment(environ, options, redis_url="unix:///r")

    assert (options.admin_password, options.data_dir) == ("pw", Path("/data"))
    assert "pw" not in environment.values()
    assert "TESSERA_ADMIN_PASSWORD" not in environ


def test_children_use_one_thread_for_linear_algebra_by_default() -> None:
    environ = {"TESSERA_DATA_DIR": "/data", "OMP_NUM_THREADS": "4"}
    options = read_options([], environ)

    environment = child_environment(environ, options, redis_url="unix:///r")

    assert environment["OPENBLAS_NUM_THREADS"] == "1"
    assert environment["OMP_NUM_THREADS"] == "4"


def test_a_password_file_goes_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first line\nsecond\n")

    options = read_options(
        ["--admin-password-file", str(file)], {"TESSERA_ADMIN_PASSWORD": "other"}
    )

    assert options.admin_password == "first line"


def test_a_password_behind_a_pipe_is_read_once_and_the_pipe_closed() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"from the pipe\n")
    os.close(writer)

    options = read_options(["--admin-password-file", f"/dev/fd/{reader}"], {})

    assert options.admin_password == "from the pipe"
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(reader)


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_an_empty_password_file_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_text(content)

    with pytest.raises(OptionsError, match=str(file)):
        read_options(["--admin-password-file", str(file)], {})


def test_defaults_of_a_companion_apply_where_the_environment_has_no_value(
    options: Options,
) -> None:
    def images(environ: dict[str, str], defaults: dict[str, str]) -> str | None:
        made = child_environment(environ, options, redis_url="r", defaults=defaults)
        return made.get("TESSERA_IMAGES")

    assert images({}, {"TESSERA_IMAGES": "ignore"}) == "ignore"
    assert images({}, {}) is None
    assert images({"TESSERA_IMAGES": "required"}, {"TESSERA_IMAGES": "ignore"}) == "required"


def test_the_portal_answers_to_the_name_it_listens_on(options: Options) -> None:
    def hosts(host: str, **environ: str) -> list[str]:
        chosen = replace(options, host=host)
        found = child_environment(environ, chosen, redis_url="r")["TESSERA_ALLOWED_HOSTS"]
        return found.split(",")

    local = ["localhost", "127.0.0.1", "[::1]"]
    assert hosts("127.0.0.1") == hosts("0.0.0.0") == hosts("::1") == local
    assert hosts("10.0.0.5") == [*local, "10.0.0.5"]
    assert hosts("10.0.0.5", TESSERA_ALLOWED_HOSTS="portal.example") == ["portal.example"]


def test_a_port_in_use_is_reported_with_a_remedy() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(StartupError, match=f"127.0.0.1:{port}.*--port"):
            listen("127.0.0.1", port)


# -- files ---------------------------------------------------------------------------------------


def test_keys_are_made_once_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    data = DataDir(root=tmp_path / "var")

    data.prepare()
    first = (data.secret_key.read_text(), data.client_key.read_text())
    data.prepare()

    assert (data.secret_key.read_text(), data.client_key.read_text()) == first
    assert len(first[0].strip()) > 50
    for private in (data.secret_key, data.client_key, data.run, data.root):
        assert stat.S_IMODE(private.stat().st_mode) & 0o077 == 0
    assert data.client_public_key.read_text().startswith("ssh-ed25519 ")


# -- leftovers -----------------------------------------------------------------------------------


def test_processes_of_a_killed_supervisor_are_ended(tmp_path: Path) -> None:
    record = tmp_path / "children.json"
    with subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True) as left:
        record_children(record, {"web": left.pid})

        assert end_leftovers(record) == ["web"]

        assert left.wait() == -signal.SIGTERM
    assert not record.exists()


def test_a_process_that_only_has_the_same_number_is_left_alone(tmp_path: Path) -> None:
    record = tmp_path / "children.json"
    with subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True) as other:
        started = start_ticks(other.pid)
        record_children(record, {"web": other.pid})
        record.write_text(record.read_text().replace(str(started), str(started - 1)))

        assert end_leftovers(record) == []

        assert is_alive(other.pid)
        other.kill()


@pytest.mark.parametrize("content", ["", "[]", '{"web": 1}', '{"web": {"pid": "x"}}'])
def test_an_unreadable_record_ends_no_process(tmp_path: Path, content: str) -> None:
    record = tmp_path / "children.json"
    record.write_text(content)

    assert end_leftovers(record) == []


# -- silence -------------------------------------------------------------------------------------


class Clock:
    """Time that passes when told, while heartbeats are read every few seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def child(make_child: MakeChild, clock: Clock) -> Child:
    child = make_child(SLEEP, clock=clock)
    child.program = replace(child.program, has_heartbeat=True)
    child.start()
    return child


def pass_time(
    clock: Clock, watch: SilenceWatch, seconds: float, beats: Callable[[], dict[int, datetime]]
) -> None:
    for _ in range(int(seconds / 3)):
        clock.now += 3
        watch.note(beats())


def test_a_child_whose_heartbeat_does_not_change_is_silent(child: Child, clock: Clock) -> None:
    watch = SilenceWatch(dict, clock)
    assert child.pid is not None
    still = {child.pid: NOW}

    pass_time(clock, watch, SILENT_SECONDS, lambda: still)
    assert watch.silent([child]) == set()
    pass_time(clock, watch, 6, lambda: still)

    assert watch.silent([child]) == {child.pid}


def test_a_child_whose_heartbeat_moves_is_not_silent(child: Child, clock: Clock) -> None:
    watch = SilenceWatch(dict, clock)
    pid = child.pid
    assert pid is not None

    pass_time(clock, watch, 300, lambda: {pid: NOW + timedelta(seconds=clock.now)})

    assert watch.silent([child]) == set()


def test_a_child_that_never_spoke_gets_time_to_start(child: Child, clock: Clock) -> None:
    watch = SilenceWatch(dict, clock)

    pass_time(clock, watch, START_SECONDS, dict)
    assert watch.silent([child]) == set()
    pass_time(clock, watch, 6, dict)

    assert watch.silent([child]) == {child.pid}


def test_no_child_is_silent_while_the_database_is_unreachable(child: Child, clock: Clock) -> None:
    watch = SilenceWatch(dict, clock)
    assert child.pid is not None
    still = {child.pid: NOW}
    watch.note(still)

    clock.now += 600
    while_away = watch.silent([child])
    watch.note(still)
    just_back = watch.silent([child])

    assert while_away == just_back == set()


def test_heartbeats_are_not_read_from_a_database_that_cannot_be_written(
    real_database: None,
) -> None:
    from workers.models import Heartbeat

    locked = raising(OperationalError("database is locked"))
    assert set(read_heartbeats()) == {os.getpgid(0)}
    assert Heartbeat.objects.get().kind == "supervisor"

    with before_query('"workers_heartbeat"', locked), pytest.raises(OperationalError):
        read_heartbeats()


def test_a_child_that_writes_no_heartbeats_is_never_silent(child: Child, clock: Clock) -> None:
    watch = SilenceWatch(dict, clock)
    child.program = replace(child.program, has_heartbeat=False)

    pass_time(clock, watch, 600, dict)

    assert watch.silent([child]) == set()


def test_an_answered_probe_counts_as_a_heartbeat(child: Child, clock: Clock) -> None:
    answers = [True]
    read = with_probes(dict, {"one": lambda: answers[0]}, {"one": child})
    watch = SilenceWatch(dict, clock)
    assert child.pid is not None

    pass_time(clock, watch, 120, lambda: dict(read()))
    while_answering = watch.silent([child])
    answers[0] = False
    pass_time(clock, watch, SILENT_SECONDS + 6, lambda: dict(read()))

    assert while_answering == set()
    assert watch.silent([child]) == {child.pid}


def test_the_beats_of_an_earlier_process_of_the_same_number_do_not_count(
    child: Child, clock: Clock
) -> None:
    watch = SilenceWatch(dict, clock)
    assert child.pid is not None
    watch.note({child.pid: NOW})
    pass_time(clock, watch, 60, dict)
    child.started_at = clock.now

    pass_time(clock, watch, 60, dict)

    assert watch.silent([child]) == set()


# -- Redis ---------------------------------------------------------------------------------------


def test_a_socket_path_that_is_too_long_moves_to_a_short_private_folder(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()

    found = socket_path(long)

    assert len(os.fsencode(found)) < 108
    assert found == socket_path(long)
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700
    found.parent.rmdir()


def test_the_embedded_redis_listens_on_its_socket_and_stores_nothing(tmp_path: Path) -> None:
    path = socket_path(tmp_path)
    command = redis_command(find_redis(), tmp_path, path)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            wait_until(lambda: answers(path))
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        finally:
            server.terminate()
    assert not answers(path)
    assert list(tmp_path.glob("*.rdb")) == list(tmp_path.glob("*aof*")) == []


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(
        host="127.0.0.1",
        port=0,
        data_dir=tmp_path,
        admin_password="",
    )
