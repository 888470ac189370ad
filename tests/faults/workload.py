"""What people do while processes die: twenty jobs at once, more later, some stopped again."""

import random
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tessera.client import ApiError, Client, ClientError
from tests.support.whole_portal import WholePortal

SCRIPT = Path(__file__).with_name("proving_job.py")
ACCEPT_SECONDS = 240.0
OTHER_CODES = (1, 3, 42, 126, 255)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A job that somebody wants.

    Attributes:
        key: its idempotency key.
        code: with which its processes end, if nobody ends them before.
        stop_after: seconds after which its owner stops it; None when never.
        repeat: submit it once more with the same key.
    """

    key: str
    user: str
    document: dict[str, Any]
    code: int
    stop_after: float | None = None
    repeat: bool = False


@dataclass
class Accepted:
    """What the portal has promised.

    Attributes:
        jobs: the id that was answered for each key.
        stopped: ids whose stop was accepted.
    """

    wishes: dict[str, Wish] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    tries: int = 0


def new_ledger(path: Path) -> Path:
    """An empty ledger to which the jobs of all tenants, who are other Unix users, may append."""
    path.touch()
    path.chmod(0o666)
    return path


Scene = tuple["Crowd", "Drawing", Path]


def make_scene_at(
    portal: WholePortal, folder: Path, rng: random.Random, tag: str, *, longest: float = 25.0
) -> Scene:
    """People, the jobs they want, and the ledger below ``folder`` in which jobs leave evidence."""
    portal.begin_notes()
    portal.show_to_jobs(folder)
    ledger = new_ledger(folder / f"{tag}.ledger")
    return Crowd(portal), Drawing(rng, ledger, tag, longest=longest), ledger


class Drawing:
    """Draws wishes by a seed; every job's evidence goes to one ledger."""

    def __init__(
        self, rng: random.Random, ledger: Path, tag: str, *, longest: float = 25.0
    ) -> None:
        """Args: longest: seconds that a job runs at most, if nobody stops it."""
        self.longest = longest
        self._rng = rng
        self.ledger = ledger
        self._tag = tag
        self._count = 0

    def twenty(self) -> list[Wish]:
        """Twenty jobs: four that get out of the way, three gangs, and singles of any length."""
        rng, most = self._rng, self.longest
        long = partial(rng.uniform, most * 0.4, most * 0.8)
        wishes = [
            self.wish("bob", "language-a", long(), devices=2, opportunistic=True) for _ in range(4)
        ]
        wishes += [
            self.wish("alice", "vision-a", long(), instances=4),
            self.wish("alice", "vision-a", long(), instances=2, devices=2),
            self.wish("bob", "language-a", long(), instances=2),
        ]
        wishes += [self.single(seconds=(1, most)) for _ in range(10)]
        wishes += [
            self.single(seconds=(60, 60), stop_after=rng.uniform(0, most / 2)) for _ in range(3)
        ]
        return wishes

    def single(
        self, *, seconds: tuple[float, float] = (0, 3), stop_after: float | None = None
    ) -> Wish:
        """One job on one device."""
        clusters = [("alice", "vision-a"), ("alice", "vision-b"), ("bob", "language-a")]
        user, cluster = self._rng.choices(clusters, weights=(6, 2, 4))[0]
        return self.wish(user, cluster, self._rng.uniform(*seconds), stop_after=stop_after)

    def wish(
        self,
        user: str,
        cluster: str,
        seconds: float,
        *,
        instances: int = 1,
        devices: int = 1,
        opportunistic: bool = False,
        stop_after: float | None = None,
    ) -> Wish:
        """One job of a given shape."""
        self._count += 1
        key = f"{self._tag}-{self._count}"
        code = self._rng.choice(OTHER_CODES) if self._rng.random() < 0.4 else 0
        words = [sys.executable, "-I", "-S", str(SCRIPT), str(self.ledger), f"{seconds:.2f}"]
        role = {
            "instances": instances,
            "devices": devices,
            # The shell reads the clock, since Python takes long to start on a busy machine.
            "command": f"read -r begun _ </proc/uptime; exec {shlex.join(words)} {code} $begun",
        }
        document = {
            "name": key,
            "virtual_cluster": cluster,
            "class": "opportunistic" if opportunistic else "guaranteed",
            "grace_seconds": 20,
            "roles": {"worker": role},
        }
        return Wish(
            key=key,
            user=user,
            document=document,
            code=code,
            stop_after=stop_after,
            repeat=self._rng.random() < 0.3,
        )


class Crowd:
    """Threads that want something from the portal and do not give up before they have it."""

    def __init__(self, portal: WholePortal) -> None:
        self._portal = portal
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()
        self.accepted = Accepted()

    def want(self, wishes: Sequence[Wish], *, people: int = 3) -> None:
        """Submit these jobs, several people at a time."""
        for number in range(people):
            self._do(self._submit_all, wishes[number::people])

    @contextmanager
    def trickle(self, drawing: Drawing, *, every: float = 1.5) -> Iterator[None]:
        """Submit small jobs again and again until the block is left."""
        self._do(self._submit_on, drawing, every)
        try:
            yield
        finally:
            self._ended.set()

    def wait(self) -> Accepted:
        """Wait until everything that is wanted has been accepted."""
        self._ended.set()
        # Whoever submits may start somebody who stops.
        for thread in iter(lambda: self._threads.pop() if self._threads else None, None):
            thread.join(ACCEPT_SECONDS + 60)
            assert not thread.is_alive(), "somebody hangs"
        assert not self.accepted.refused, self.accepted.refused
        return self.accepted

    def _do(self, act: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=act, args=arguments, daemon=True)
        thread.start()
        # Only now, or who waits could be about to join what has not begun.
        self._threads.append(thread)

    def _submit_all(self, wishes: Sequence[Wish]) -> None:
        for wish in wishes:
            self._submit(wish)

    def _submit_on(self, drawing: Drawing, every: float) -> None:
        while not self._ended.wait(every):
            self._submit(drawing.single())

    def _submit(self, wish: Wish) -> None:
        with self._lock:
            self.accepted.wishes[wish.key] = wish

        def submit(client: Client) -> int:
            return client.submit(wish.document, idempotency_key=wish.key).id

        job_id = self._insist(wish, submit)
        if job_id is None:
            return
        with self._lock:
            self.accepted.jobs[wish.key] = job_id
        if wish.repeat and self._insist(wish, submit) not in {None, job_id}:
            self.accepted.refused.append(f"{wish.key} got another id when it was repeated")
        if wish.stop_after is not None:
            self._do(self._stop, wish, job_id)

    def _stop(self, wish: Wish, job_id: int) -> None:
        self._ended.wait(wish.stop_after)
        if self._insist(wish, lambda client: client.stop(job_id).id) is not None:
            with self._lock:
                self.accepted.stopped.add(job_id)

    def _insist(self, wish: Wish, act: Any) -> int | None:
        """Ask until there is an answer; one that says no is written down."""
        deadline = time.monotonic() + ACCEPT_SECONDS
        while True:
            try:
                with self._portal.client(wish.user) as client:
                    self.accepted.tries += 1
                    found: int = act(client)
                    return found
            except ApiError as error:
                if error.status < 500:
                    self.accepted.refused.append(f"{wish.key}: {error.status} {error.body}")
                    return None
                said = str(error)
            except ClientError as error:
                said = str(error)
            if time.monotonic() > deadline:
                self.accepted.refused.append(f"{wish.key} was never answered: {said}")
                return None
            time.sleep(0.3)
