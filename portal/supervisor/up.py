"""One run of ``tessera up``, from the lock on the data directory to the end of the last process.

Exit status: 0 after TERM or Ctrl-C; 1 if the start fails; 2 for invalid options or environment.
"""

import fcntl
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from portal.supervisor import startup
from portal.supervisor.blocking import BlockWatch, groups_that_write
from portal.supervisor.children import end_leftovers
from portal.supervisor.files import DataDir
from portal.supervisor.options import Options, OptionsError, child_environment, read_options
from portal.supervisor.processes import ProcessTable
from portal.supervisor.redis_server import NoRedisError
from portal.supervisor.silence import SILENT_SECONDS, SilenceWatch, read_heartbeats, with_probes
from portal.supervisor.startup import fingerprint, is_prepared, note_prepared
from portal.supervisor.supervisor import SignalWatch, StartupError, StoppedError, Supervisor

EX_FAILED: Final = 1
EX_USAGE: Final = 2


_FIRST_STEPS: Final = (
    "    Add a node:    ./tessera node add USER@HOST",
    "    Submit a job:  ./tessera submit -- nvidia-smi",
    "    The first node creates the tenant and virtual cluster default for the admin.",
)

CompanionFor = Callable[[DataDir], startup.Companion]


def main(arguments: Sequence[str] | None = None, companion_for: CompanionFor | None = None) -> int:
    """Start all processes, supervise them until TERM or Ctrl-C, and end them.

    Args:
        arguments: options; by default those of the command line.
        companion_for: returns the companion of the portal for its data directory.
    """
    started_at = time.monotonic()
    os.umask(0o077)
    signals = SignalWatch()
    signals.install()
    try:
        options = read_options(sys.argv[1:] if arguments is None else arguments, os.environ)
        data = DataDir(root=options.data_dir)
        data.prepare()
        with _only_supervisor(data):
            companion = None if companion_for is None else companion_for(data)
            return _run(options, data, signals, started_at, companion)
    except (OptionsError, ValueError) as error:
        say(f"error: {error}")
        return EX_USAGE
    except (StartupError, NoRedisError) as error:
        say(f"error: {error}")
        return EX_FAILED
    except OSError as error:
        say(f"error: {error}")
        return EX_FAILED


def _run(
    options: Options,
    data: DataDir,
    signals: SignalWatch,
    started_at: float,
    companion: startup.Companion | None,
) -> int:
    left = end_leftovers(data.children)
    if left:
        say(f"ended processes of an earlier start: {', '.join(left)}")
    own_redis = not os.environ.get("TESSERA_REDIS_URL")
    unix_socket = startup.redis_socket(data)
    redis_url = f"unix://{unix_socket}" if own_redis else os.environ["TESSERA_REDIS_URL"]
    defaults = {} if companion is None else companion.variables
    environment = child_environment(os.environ, options, redis_url=redis_url, defaults=defaults)
    os.environ.update(environment)
    _check_settings()
    supervisor = Supervisor(logs=data.logs, record=data.children, signals=signals, say=say)
    table = ProcessTable(data=data, environment=environment)
    probes = startup.probes(unix_socket if own_redis else None, companion)
    blocks = BlockWatch(groups_that_write)
    beats = with_probes(read_heartbeats, probes, supervisor.children)
    watch = SilenceWatch(beats, blocks=blocks)
    with startup.listen(options.host, options.port) as listener:
        try:
            if own_redis:
                startup.start_redis(supervisor, table, unix_socket)
            made = _start(supervisor, table, options, listener, companion)
            _await_ready(supervisor, listener)
            _welcome(listener, options, made, time.monotonic() - started_at, companion)
            watch.start()
            _look_after(supervisor, watch, blocks)
        except StoppedError:
            say("ending ...")
            status = 0
        except StartupError as error:
            _explain(error, data)
            status = EX_FAILED
        finally:
            watch.stop()
            listener.close()
            supervisor.end_all()
    if status == 0:
        say("all processes have ended; the data is retained, and jobs on nodes continue")
    return status


def _start(
    supervisor: Supervisor,
    table: ProcessTable,
    options: Options,
    listener: socket.socket,
    companion: startup.Companion | None,
) -> dict[str, Any]:
    if companion is not None:
        companion.start(supervisor, table)
    stamp, environment = table.data.prepared, table.environment
    is_current = is_prepared(stamp, fingerprint(table.data.root, environment))
    if is_current:
        # The tables are current, so the other programs start in parallel with ``set_up``.
        startup.start_portal(supervisor, table, listener.fileno())
    made = startup.prepare_database(supervisor, table, options, companion)
    note_prepared(stamp, fingerprint(table.data.root, environment))
    if not is_current:
        startup.start_portal(supervisor, table, listener.fileno())
    return made


def _look_after(supervisor: Supervisor, watch: SilenceWatch, blocks: BlockWatch) -> None:
    """Supervise until a request to stop, which raises ``StoppedError``."""
    while True:
        supervisor.tick()
        restart_hanging(supervisor, watch, blocks)


def restart_hanging(supervisor: Supervisor, watch: SilenceWatch, blocks: BlockWatch) -> None:
    """Restart children without heartbeats, and children that block the database."""
    children = supervisor.children.values()
    supervisor.restart(
        watch.silent(children), why=f"has sent no heartbeat for {SILENT_SECONDS:g} s"
    )
    why = f"has blocked writes to the database for {blocks.seconds:g} s"
    supervisor.restart(blocks.blocking(children), why=why)


def _await_ready(supervisor: Supervisor, listener: socket.socket) -> None:
    named = os.environ["TESSERA_ALLOWED_HOSTS"].partition(",")[0].strip().lstrip(".")
    name = "localhost" if named == "*" else named
    last = startup.await_ready(supervisor, _address(listener), name)
    if last:
        checks = ", ".join(f"{name} {value}" for name, value in last.items())
        say(f"not ready yet ({checks}); continuing, see the logs")


def _address(listener: socket.socket) -> tuple[str, int]:
    """Return the address by which this machine reaches the portal."""
    host, port = listener.getsockname()[:2]
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 compared, not bound
    return everywhere.get(host, host), int(port)


def _check_settings() -> None:
    """Raise an error if the environment is invalid, before any process starts.

    Raises:
        ValueError: a variable is unknown or invalid; the message contains its name.
    """
    from portal import settings  # noqa: PLC0415 reads the environment as it is imported

    assert settings.TESSERA  # noqa: S101 being imported is all that is wanted


def _welcome(
    listener: socket.socket,
    options: Options,
    made: dict[str, Any],
    seconds: float,
    companion: startup.Companion | None,
) -> None:
    host, port = _address(listener)
    shown = f"[{host}]" if ":" in host else host
    lines = ["", f"  Tessera is ready after {seconds:.0f} s:  http://{shown}:{port}/", ""]
    logins = made.get("logins") or {}
    for name, password in logins.items():
        lines.append(f"    {name:<8} {password}")
    if logins:
        lines.append("    (passwords are shown only once)")
    else:
        lines.append("    Sign in as admin with your existing password.")
    if companion is not None:
        lines += ["", *companion.lines()]
    elif logins:
        lines += ["", *_FIRST_STEPS]
    lines += ["", f"  Data and logs: {options.data_dir}   Stop: Ctrl-C", ""]
    print("\n".join(lines), flush=True)


def _explain(error: StartupError, data: DataDir) -> None:
    say(f"error: {error}")
    for line in error.lines:
        say(f"  | {line}")
    if error.lines:
        say(f"full logs: {data.logs}")


@contextmanager
def _only_supervisor(data: DataDir) -> Iterator[None]:
    """Hold the lock of the data directory inside the block.

    Raises:
        StartupError: another supervisor holds it.
    """
    handle = os.open(data.lock, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(handle, "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = lock.read(20).strip() or "unknown"
            raise StartupError(
                f"another `tessera up` (process {other}) uses {data.root}: stop it first, or "
                f"choose another --data-dir"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def say(text: str) -> None:
    """Print a line on the console; a closed console is not an error."""
    try:
        print(f"tessera: {text}", file=sys.stderr, flush=True)
    except OSError:
        return
