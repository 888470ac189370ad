"""A job runs as it was written, and its end is told as it was."""

import json
import os
import signal
import stat
import time
from pathlib import Path

import pytest
from session import Session, make_spec, wait_until

from tessera import protocol
from tessera.node import system

NASTY = "a'b\"c$(touch HACKED)`touch HACKED`\\n\n;touch HACKED|&\t*?~ é ☃ 😀 %s {} -- \x7f"


def alive(pid: int) -> bool:
    return system.process(pid) is not None


def test_output_and_exit_code_come_back(shared: Session) -> None:
    status, output = shared.run("echo out; echo err >&2; exit 3")

    assert output == "out\nerr\n"
    assert status.exit is not None
    assert (status.exit.cause, status.exit.code, status.exit.failure) == ("exited", 3, "user")
    assert status.log_end == len(output)


def test_a_job_that_ends_well_has_no_failure_class(shared: Session) -> None:
    status, _ = shared.run("true")

    assert status.exit is not None
    assert (status.exit.cause, status.exit.code, status.exit.failure) == ("exited", 0, "")


def test_a_job_that_a_signal_ends_says_which(shared: Session) -> None:
    status, _ = shared.run("kill -SEGV $$")

    assert status.exit is not None
    assert (status.exit.code, status.exit.signal) == (None, signal.SIGSEGV)
    assert status.exit.failure == "user"


def test_what_a_user_wrote_arrives_literally(shared: Session) -> None:
    show = "import os; print(repr([os.environ['NASTY'], os.environ['TESSERA_JOB_NAME']]))"
    command = (
        f"""python3 -c "{show}"\ncat "$TESSERA_JOB_SECRETS_DIR/token"\ncat <<'END'\n{NASTY}\nEND"""
    )
    spec = make_spec(command, env={"NASTY": NASTY}, job_name=NASTY)

    shared.start(spec, token=NASTY)
    shared.exit_of(spec)

    shown, _, rest = shared.log(spec).partition("\n")
    assert shown == repr([NASTY, NASTY])
    assert rest == NASTY + NASTY + "\n"
    assert not list(shared.home.rglob("HACKED"))
    script = (shared.directory(spec) / protocol.COMMAND_FILE).read_text()
    assert script == command + "\n"


def test_the_sessions_own_environment_does_not_reach_the_job(shared: Session) -> None:
    _, output = shared.run("env")

    names = {line.partition("=")[0] for line in output.splitlines()}
    assert "SESSION_ONLY" not in names
    assert {"PATH", "HOME", "TESSERA_JOB_RUN_DIR", "PYTHONPATH"} <= names


def test_the_job_reaches_the_training_library(shared: Session) -> None:
    command = "python3 -c 'import tessera.train as t; print(t.job().role, t.job().rank)'"

    status, output = shared.run(command, role="chief", rank=3)

    assert output == "chief 3\n"
    assert status.exit is not None
    assert status.exit.code == 0


def test_a_job_gets_no_descriptor_signal_mask_or_terminal_of_the_node(shared: Session) -> None:
    _, output = shared.run("ls /proc/self/fd; grep -E 'SigIgn|SigBlk' /proc/self/status")

    descriptors = output.split("SigBlk")[0].split()
    assert descriptors == ["0", "1", "2", "3"]  # the last is ls reading the directory
    masks = [int(line.split()[1], 16) for line in output.splitlines() if line.startswith("Sig")]
    # Signals 32 and 33 are the C library's own: posix_spawn of any ancestor (make, say) leaves
    # them ignored. A shell in the background leaves SIGINT and SIGQUIT so; a node's sshd does not.
    of_the_caller = (0b11 << 31) | (1 << (signal.SIGINT - 1)) | (1 << (signal.SIGQUIT - 1))
    assert [mask & ~of_the_caller for mask in masks] == [0, 0]


def test_run_files_are_the_owners_alone(shared: Session) -> None:
    spec = make_spec("sleep 60")
    shared.start(spec, token="hunter2")

    directory = shared.directory(spec)
    secret = directory / "secrets" / "token"

    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert b"hunter2" not in (directory / protocol.STATE_FILE).read_bytes()


def test_secrets_are_gone_after_the_end(shared: Session) -> None:
    spec = make_spec("cat $TESSERA_JOB_SECRETS_DIR/token")

    shared.start(spec, token="hunter2")
    shared.exit_of(spec)

    assert shared.log(spec) == "hunter2"
    assert not (shared.directory(spec) / "secrets").exists()


def test_a_command_that_is_missing_and_a_workdir_that_is_missing(shared: Session) -> None:
    status, output = shared.run("no-such-program")

    assert status.exit is not None
    assert status.exit.code == 127
    assert "no-such-program" in output
    with pytest.raises(protocol.ProtocolError, match="no directory"):
        shared.prepare(make_spec(workdir="missing"))


def test_a_stop_is_a_term_first(shared: Session) -> None:
    spec = make_spec("trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.01; done")
    shared.start(spec)
    wait_until(lambda: "up" in shared.log(spec), "the job is up")

    shared.ask("stop", run_id=spec.run_id, grace_seconds=20, reason="user")
    status = shared.exit_of(spec)

    assert shared.log(spec).endswith("bye\n")
    assert status.exit is not None
    assert (status.exit.cause, status.exit.code, status.exit.failure) == ("stopped", 5, "")
    assert status.notice == "user"


def test_a_job_that_ignores_term_is_killed_after_its_grace(shared: Session) -> None:
    spec = make_spec("trap '' TERM; echo up; while :; do sleep 0.01; done")
    shared.start(spec)
    wait_until(lambda: "up" in shared.log(spec), "the job is up")
    began = time.monotonic()

    shared.ask("stop", run_id=spec.run_id, grace_seconds=0.3, reason="user")
    status = shared.exit_of(spec)

    assert time.monotonic() - began > 0.25
    assert status.exit is not None
    assert (status.exit.cause, status.exit.signal) == ("stopped", signal.SIGKILL)


def test_a_second_stop_can_only_shorten_the_grace(shared: Session) -> None:
    spec = make_spec("trap '' TERM; echo up; while :; do sleep 0.01; done")
    shared.start(spec)
    wait_until(lambda: "up" in shared.log(spec), "the job is up")

    shared.ask("stop", run_id=spec.run_id, grace_seconds=1000, reason="preempted")
    wait_until(lambda: shared.status(spec).notice, "the notice")
    shared.ask("stop", run_id=spec.run_id, grace_seconds=0, reason="user")
    status = shared.exit_of(spec)

    assert status.exit is not None
    assert status.exit.signal == signal.SIGKILL
    assert status.notice == "preempted"


def test_a_job_that_listens_has_its_grace_before_any_signal(shared: Session) -> None:
    command = """python3 -u -c '
import signal, time
from tessera import train
signal.signal(signal.SIGTERM, lambda *_: print("TERM"))
train.should_yield()
print("up")
while not train.should_yield():
    time.sleep(0.005)
print("saved", train.notice())
'"""
    spec = make_spec(command)
    shared.start(spec)
    wait_until(lambda: "up" in shared.log(spec), "the job is up")

    shared.ask("stop", run_id=spec.run_id, grace_seconds=20, reason="preempted")
    status = shared.exit_of(spec)

    assert shared.log(spec) == "up\nsaved preempted\n"
    assert status.exit is not None
    assert (status.exit.cause, status.exit.code) == ("stopped", 0)


def test_a_job_beyond_its_time_is_ended_as_timeout(shared: Session) -> None:
    status, _ = shared.run("sleep 60", max_duration_seconds=0.2)

    assert status.exit is not None
    assert (status.exit.cause, status.exit.failure) == ("timeout", "timeout")


def test_a_lease_that_nobody_renews_ends_the_job(shared: Session) -> None:
    status, _ = shared.run("sleep 60", lease_seconds=0.2)

    assert status.exit is not None
    assert (status.exit.cause, status.exit.failure) == ("lease-expired", "platform")
    assert status.notice == "lease-expired"


def test_a_renewed_lease_lets_the_job_go_on(shared: Session) -> None:
    spec = make_spec("sleep 1.0; echo done", lease_seconds=0.5)
    shared.start(spec)

    reply = shared.ask("renew", run_ids=[spec.run_id, make_spec().run_id], seconds=30)
    status = shared.exit_of(spec)

    assert list(reply["deadlines"]) == [spec.run_id]
    assert reply["deadlines"][spec.run_id] > reply["clock"]
    assert status.exit is not None
    assert (status.exit.cause, shared.log(spec)) == ("exited", "done\n")


@pytest.mark.parametrize(
    "leave",
    [
        "sleep 1000 & echo $!",
        "setsid sleep 1000 & echo $!",
        "python3 -c 'import os,time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): "
        "os._exit(0)\nprint(os.getpid(), flush=True)\ntime.sleep(1000)'; sleep 0.3",
        "env -i setsid sh -c 'trap \"\" TERM; echo $$; exec sleep 1000' & sleep 0.2",
    ],
)
def test_nothing_that_a_job_started_is_left_behind(plain: Session, leave: str) -> None:
    status, output = plain.run(leave)

    assert status.exit is not None
    assert status.exit.code == 0
    assert not alive(int(output.split()[0]))


def test_output_is_there_while_the_job_runs(shared: Session) -> None:
    spec = make_spec("printf 'no newline'; sleep 60")
    shared.start(spec)

    wait_until(lambda: shared.log(spec) == "no newline", "the output")
    grew = wait_until(
        lambda: [e for e in shared.events if e.get("run", e).get("log_end") == 10],
        "the event",
    )

    assert shared.status(spec).phase == protocol.RUNNING
    assert grew[0].get("run", grew[0])["run_id"] == spec.run_id


def test_reports_are_a_stream_of_their_own(shared: Session) -> None:
    command = "python3 -c 'from tessera import train; train.report(step=1, loss=float(\"nan\"))'"
    spec = make_spec(command)
    shared.start(spec)
    status = shared.exit_of(spec)

    reports = [json.loads(line) for line in shared.log(spec, "reports").splitlines()]

    assert [(report["step"], report["loss"]) for report in reports] == [(1, None)]
    assert status.reports_end == len(shared.bytes_of(spec, "reports"))


def test_reports_that_are_no_file_are_not_followed(shared: Session, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    for trick in (f"ln -s {secret} $TESSERA_JOB_REPORTS", "mkfifo $TESSERA_JOB_REPORTS"):
        spec = make_spec(trick)
        shared.start(spec)
        shared.exit_of(spec)

        assert shared.log(spec, "reports") == ""


def test_a_flood_of_output_is_marked_and_bounded_and_never_kills_the_job(
    shared: Session,
) -> None:
    spec = make_spec(
        "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last",
        log_rate_bytes=100_000,
        log_cap_bytes=200_000,
        log_segment_bytes=50_000,
    )
    shared.start(spec)
    status = shared.exit_of(spec)

    kept = sum(path.stat().st_size for path in (shared.directory(spec) / "log").iterdir())
    log = shared.log(spec)
    assert status.exit is not None
    assert status.exit.code == 0
    assert kept <= 200_000
    assert "[tessera] output above 100000 bytes/s" in log
    assert status.log_end > kept


def test_a_hundred_runs_at_once_all_end_as_they_should(shared: Session) -> None:
    specs = [make_spec(f"echo {number}; exit {number}") for number in range(100)]
    for spec in specs:
        shared.send("prepare", run=spec.to_json(), secrets={})
    for spec in specs:
        shared.send("go", run_id=spec.run_id)

    ends = [shared.exit_of(spec, 60) for spec in specs]

    assert not [end.exit.message for end in ends if end.exit and end.exit.code is None]
    assert [end.exit.code for end in ends if end.exit] == list(range(100))
    assert [shared.log(spec) for spec in specs] == [f"{number}\n" for number in range(100)]
    assert not [pid for end in ends if (pid := end.pid) and alive(pid)]


def test_memory_beyond_the_limit_is_an_oom(shared: Session) -> None:
    from tessera.node import cgroups

    if not cgroups.version() or os.environ.get("CI_NO_CGROUPS"):
        pytest.skip("this user may not make control groups")
    hog = "python3 -c 'x = bytearray(300 << 20); print(len(x))'"

    status, _ = shared.run(hog, memory_bytes=64 << 20, cpus=1, limits_enforced=True)

    assert status.exit is not None
    assert (status.exit.cause, status.exit.failure) == ("oom", "resource-limit")
    assert status.warnings == []
    assert not cgroups.members(status.run_id)


def test_a_job_is_in_groups_with_its_limits(shared: Session) -> None:
    from tessera.node import cgroups

    if not cgroups.version() or os.environ.get("CI_NO_CGROUPS"):
        pytest.skip("this user may not make control groups")
    files = {"cpu.max": "", "memory.max": "", "cpu.cfs_quota_us": "cpu"}
    files["memory.limit_in_bytes"] = "memory"
    spec = make_spec("sleep 60", memory_bytes=256 << 20, cpus=1.5, limits_enforced=True)

    status = shared.start(spec)
    limits = []
    for line in Path(f"/proc/{status.pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for file, name in files.items():
            found = Path("/sys/fs/cgroup", name, path.lstrip("/"), file)
            if name in names.split(",") and found.exists():
                limits.append(found.read_text().split()[0])
    shared.ask("stop", run_id=spec.run_id, grace_seconds=0, reason="user")
    shared.exit_of(spec)

    if "limits-not-enforced" in status.warnings:
        pytest.skip("this user may not make all control groups")
    assert sorted(limits) == ["150000", str(256 << 20)]
    assert not cgroups.members(status.run_id)


def test_limits_that_cannot_be_enforced_are_reported(shared: Session) -> None:
    from tessera.node import cgroups

    if cgroups.version():
        pytest.skip("this user may make control groups")

    status, _ = shared.run("true", memory_bytes=64 << 20, limits_enforced=True)

    assert status.warnings == ["limits-not-enforced"]
