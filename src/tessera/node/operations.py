"""The operations of the node protocol."""

from __future__ import annotations

import base64
import os
import signal
import time
from typing import Callable, Dict, Optional

from tessera import protocol
from tessera.isolation import MAX_PATH_BYTES
from tessera.node import (
    background,
    checkpoints,
    confinement,
    container_files,
    engine,
    fence,
    helped,
    networks,
    prepare,
    probe,
    runner,
    storages,
    system,
    telemetry,
    tuning,
    uploads,
    versions,
    visibility,
)
from tessera.node.background import SessionPort
from tessera.node.runs import Run
from tessera.node.sharing import requests
from tessera.protocol import (
    ContainerRef,
    Inventory,
    Json,
    NodeHello,
    ProtocolError,
    RunSpec,
    RunStatus,
)
from tessera.storage import MAX_SOURCES
from tessera.wire import Fields

STATUS_PAGE = 500


class Operations:
    """The operations of a session; some reply from a child process, ``go`` once the job runs."""

    def __init__(self, session: SessionPort) -> None:
        self._session = session
        self._store = session.store
        self._telemetry = telemetry.Telemetry(self._store)
        self._immediate: Dict[str, Callable[[Fields], Json]] = {
            protocol.HELLO: self._hello,
            protocol.STOP: self._stop,
            protocol.RUNS: self._runs,
            protocol.RENEW: self._renew,
            protocol.READ: self._read,
            protocol.TUNE: self._tune,
            protocol.SHARE: self._share,
            protocol.SAVED: self._saved,
            protocol.READ_SAVED: self._read_saved,
        }
        self._deferred: Dict[str, Callable[[int, Fields], Optional[Json]]] = {
            protocol.PROBE: self._probe,
            protocol.STORAGES: self._look_at_storages,
            protocol.TELEMETRY: self._take_telemetry,
            protocol.PREPARE: self._prepare,
            protocol.GO: self._go,
            protocol.CANCEL: self._cancel,
            protocol.REMOVE: self._remove,
            protocol.BLOB: self._blob,
            protocol.PUT_SAVED: self._put_saved,
        }

    def handle(self, number: int, request: Json) -> None:
        """Execute one request, and reply exactly once."""
        name = str(request.pop("op", None))
        take = Fields(request, name[:40])

        def work() -> Json:
            if name in self._immediate:
                return self._immediate[name](take)
            if name in self._deferred:
                fields = self._deferred[name](number, take)
                return {"later": True} if fields is None else fields
            raise ProtocolError("unknown-op", f"no operation {name[:100]!r}")

        reply = background.outcome(work)
        if "later" not in reply:
            self._session.reply(number, reply)

    def _run(self, take: Fields) -> Run:
        return self._store.run(take.text("run_id", None, 256))

    def _seen(self, run: Run) -> None:
        self._session.watch.look(run, time.monotonic())

    # -- the node --------------------------------------------------------------------------------

    def _hello(self, take: Fields) -> Json:
        version = take.integer("protocol", None, 0, 1 << 30)
        if not protocol.OLDEST_VERSION <= version <= protocol.PROTOCOL_VERSION:
            known = protocol.KNOWN_VERSIONS
            raise ProtocolError("protocol-mismatch", f"this node supports protocol {known}")
        self._sweep()
        hello = NodeHello(
            protocol=version,
            pid=os.getpid(),
            boot_id=system.boot_id(),
            hostname=system.hostname(),
            python=system.python_version(),
            home=os.path.dirname(self._store.root),
            root=self._store.root,
            bundle=self._session.bundle,
            uid=os.getuid(),
            gid=os.getgid(),
            clock=system.boot_clock(),
            runs=len(self._store.names()),
        )
        return {"hello": hello.to_json(), **_clocks()}

    def _sweep(self) -> None:
        """Clean up after interrupted sessions: cancelled runs, old blobs and versions."""
        versions.touch(self._store, self._session.bundle)
        for run in self._store.all_runs():
            if run.cancelled():
                run.discard()
        versions.put_away(self._store, self._session.bundle)
        self._session.sweep_soon(whole=True)
        uploads.remove_old(self._store)

    def _probe(self, number: int, take: Fields) -> None:
        root = self._store.root
        self._session.work(
            number, lambda: {"inventory": probe.inventory(root).to_json()}, self._probed
        )

    def _probed(self, outcome: Json) -> None:
        if outcome["ok"]:
            found = Inventory.from_json(outcome["inventory"])
            helped.close()  # a new version of the helper may be installed
            confinement.remember(self._store.root, found.isolation)
            networks.remember(found.networks)

    def _look_at_storages(self, number: int, take: Fields) -> None:
        sources = take.texts("sources", MAX_SOURCES, MAX_PATH_BYTES)
        root = self._store.root
        self._session.work(
            number,
            lambda: {"storages": [one.to_json() for one in storages.probe(root, sources)]},
            lambda outcome: None,
        )

    def _take_telemetry(self, number: int, take: Fields) -> None:
        root = self._store.root
        self._session.work(number, lambda: telemetry.sample(root), self._telemetry.complete)

    # -- starting --------------------------------------------------------------------------------

    def _prepare(self, number: int, take: Fields) -> Optional[Json]:
        spec = RunSpec.from_json(take.raw("run"))
        secrets = protocol.check_secrets(take.raw("secrets") or {})
        run = self._store.run(spec.run_id)
        confinement.level_for(self._store.root, spec)
        visibility.check_checkpoints(self._store.root, spec)
        version = versions.version_of(self._store, self._session.bundle)

        def work() -> Json:
            status = prepare.prepare(self._store, spec, secrets, version)
            if spec.container is None:
                return {"run": status.to_json()}
            view = visibility.of_container(run, spec)
            if spec.container.own_user:
                container_files.open_run(run, view.checkpoints)
            return {"run": status.to_json(), "view": view.to_json()}

        fetches = spec.source_git is not None or spec.source_archive is not None
        if fetches or run.exists() or spec.container is not None:
            self._session.work(number, work, self._prepared)
            return None
        reply = work()
        self._session.watch.told(RunStatus.from_json(reply["run"]))
        return reply

    def _go(self, number: int, take: Fields) -> Optional[Json]:
        run = self._run(take)
        status = fence.settle(run)
        if status.phase == protocol.PREPARED and not run.claimed():
            requests.check_holders(self._store.root, run.spec())
            # In this process, so that the next run has the probes, too. Before the claim, since a
            # session that is killed between claim and fork leaves a run that nobody may start.
            confinement.known(self._store.root)
            confinement.make_ready(self._store.root)
            networks.choose(self._store.root, run.spec())
            visibility.homes(self._store.root)
        try:
            lock = run.claim(seen=status)
        except FileExistsError:
            if run.cancelled():
                raise ProtocolError("cancelled", f"run {run.run_id} was cancelled") from None
            return {"run": run.status().to_json(), "already": True}
        except ProtocolError:
            if status.phase in (protocol.RUNNING, protocol.EXITED):
                return {"run": status.to_json(), "already": True}
            raise

        def started() -> None:
            reply = background.outcome(
                lambda: {**self._status_reply(run.status()), "already": False}
            )
            self._session.reply(number, reply)
            if not reply["ok"] or reply["run"]["phase"] == protocol.EXITED:
                self._seen(run)

        self._session.start(run, lock, started)
        return None

    def _prepared(self, outcome: Json) -> None:
        if outcome["ok"]:
            self._session.watch.told(RunStatus.from_json(outcome["run"]))

    def _status_reply(self, status: RunStatus) -> Json:
        """Build a reply with the status of a run, which replaces a separate event."""
        self._session.watch.told(status)
        return {"run": status.to_json()}

    def _cancel(self, number: int, take: Fields) -> Optional[Json]:
        run = self._run(take)
        if not run.exists():
            return {"cancelled": False}
        if _may_have_container(run):
            self._session.work(
                number, lambda: self._cancel_container(run), lambda _outcome: self._seen(run)
            )
            return None
        prepare.cancel(run)
        self._seen(run)
        return {"cancelled": True}

    def _cancel_container(self, run: Run) -> Json:
        """Cancel a run, and remove its container by the socket in its specification.

        The latest probe may not have found the engine, so the control plane may not know it.
        """
        container = _container_of(run)
        prepare.cancel(run)
        try:
            if container is not None:
                engine.remove_own(container)
        except engine.EngineError:
            pass  # its labels name the run
        return {"cancelled": True}

    # -- running job ---------------------------------------------------------------------------

    def _stop(self, take: Fields) -> Json:
        run = self._run(take)
        grace = take.number("grace_seconds", None, 0.0, 86_400.0)
        reason = take.text("reason", "stop", 200)
        status = run.recorded()
        if status.phase == protocol.EXITED:
            return {"run": run.status().to_json()}
        if status.phase != protocol.RUNNING and not run.claimed():
            raise ProtocolError("not-started", f"run {run.run_id} was not started: cancel it")
        try:
            run.request_stop(grace, reason)
        except OSError:
            runner.wake(status, signal.SIGUSR2)  # if the disk is full, the run still ends in time
        else:
            runner.wake(status)
        return {"run": run.status().to_json()}

    def _tune(self, take: Fields) -> Json:
        """Send training settings to a running job; else an error."""
        run = self._run(take)
        settings = tuning.checked(take)
        if run.recorded().phase != protocol.RUNNING:
            raise ProtocolError("not-running", f"run {run.run_id} is not running")
        try:
            run.tune(settings)
        except OSError as error:
            words = f"the settings cannot be written: {error.strerror}"
            raise ProtocolError("not-written", words, protocol.NODE) from error
        return {"tuned": True}

    def _share(self, take: Fields) -> Json:
        """Store the guests of a running holder, and wake its runner, which coordinates them."""
        run = self._run(take)
        requests.order_guests(run, take)
        runner.wake(run.recorded())
        return {"shared": True}

    def _renew(self, take: Fields) -> Json:
        seconds = take.number("seconds", None, 0.05, 1e9)
        deadlines = {}
        for run_id in take.texts("run_ids", 10_000, 256):
            run = self._store.run(run_id)
            try:
                if run.exists():
                    deadlines[run_id] = run.renew(seconds)
            except OSError:
                continue  # runs missing in the reply were not renewed
        return {"deadlines": deadlines, **_clocks()}

    def _runs(self, take: Fields) -> Json:
        after = take.text("after", "", 256)
        limit = take.integer("limit", STATUS_PAGE, 1, STATUS_PAGE)
        names = [name for name in self._store.names() if name > after]
        found = []
        for name in names[:limit]:
            try:
                found.append(fence.settle(self._store.run(name)).to_json())
            except ProtocolError:
                continue  # removed meanwhile
        following = names[limit - 1] if len(names) > limit else None
        return {"runs": found, "next": following, **_clocks()}

    def _read(self, take: Fields) -> Json:
        run = self._run(take)
        stream = take.choice(
            "stream", protocol.STREAM_LOG, (protocol.STREAM_LOG, protocol.STREAM_REPORTS)
        )
        offset = take.integer("offset", 0, 0, 1 << 62)
        most = protocol.MAX_READ_BYTES
        limit = take.integer("limit", most, 1, 1 << 40)
        closed = run.recorded().phase == protocol.EXITED  # read before the output
        start, content, end = run.read(stream, offset, min(limit, most))
        data = base64.b64encode(content).decode("ascii")
        return {"data": data, "offset": start, "end": end, "closed": closed}

    # -- the end ---------------------------------------------------------------------------------

    def _remove(self, number: int, take: Fields) -> Optional[Json]:
        run = self._run(take)
        if not run.exists():
            return {"removed": False}
        phase = fence.settle(run).phase
        if phase != protocol.EXITED and not run.cancelled():
            raise ProtocolError("not-exited", f"run {run.run_id} is {phase}")
        if _may_have_container(run):
            self._session.work(
                number, lambda: self._discard(run), lambda _outcome: self._swept(run)
            )
            return None
        reply = self._discard(run)
        self._swept(run)
        return reply

    def _swept(self, run: Run) -> None:
        self._seen(run)
        self._session.sweep_soon()

    def _discard(self, run: Run) -> Json:
        container = _container_of(run)
        try:
            if container is not None:
                engine.remove(container)
        except engine.EngineError:
            pass  # its labels name the run
        if container is not None:
            # Without the checkpoints: the next run of the job on this node may use them.
            container_files.reclaim(container, container_files.directories(run.path))
        try:
            run.discard()
        except FileNotFoundError:
            return {"removed": False}
        return {"removed": True}

    # -- checkpoints and uploads -----------------------------------------------------------------

    def _saved(self, take: Fields) -> Json:
        return checkpoints.newest(self._store, take)

    def _read_saved(self, take: Fields) -> Json:
        return checkpoints.read(self._store, take)

    def _blob(self, number: int, take: Fields) -> Optional[Json]:
        return uploads.receive(self._session, number, take)

    def _put_saved(self, number: int, take: Fields) -> None:
        """Store a checkpoint in a child process, since the copy may take long."""
        self._session.work(
            number, lambda: checkpoints.put(self._store, take), lambda _outcome: None
        )


def _clocks() -> Json:
    """Return the node's clocks, for converting times of runs to the control plane's clock.

    ``now`` is in seconds since the epoch and may be wrong; ``clock`` counts from the boot.
    """
    return {"now": time.time(), "clock": system.boot_clock()}


def _container_of(run: Run) -> Optional[ContainerRef]:
    """Return the container of a run; None without one, or if its spec is of another version."""
    try:
        return run.spec().container
    except ProtocolError:
        return None


def _may_have_container(run: Run) -> bool:
    """Return whether the operation must query the engine, which may block."""
    found = run.stored_spec()
    return found is None or found.get("container") is not None
