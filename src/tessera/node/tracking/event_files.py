"""Event files of TensorBoard below a run, found and read while they grow.

Files belong to the job, which may replace, cut or flood them. A file is opened once, without
following links, and read by its descriptor. Each look reads at most ``PIECE_BYTES``, and walks at
most ``MOST_ENTRIES_A_LOOK`` names.
"""

from __future__ import annotations

import json
import os
import re
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from tessera import protocol
from tessera.node import system
from tessera.node.runs import Run
from tessera.node.tracking.event_records import HEAD_BYTES, BrokenFileError, read_records
from tessera.node.tracking.lines import Value, metric_name, report_lines
from tessera.protocol import RunSpec

SWITCH = "TESSERA_EVENT_FILES"
"""A job with this variable set to 0 has no event files read."""
STATE_FILE = "events.json"
LOOK_SECONDS = 0.5
WALK_SECONDS = 10.0
IDLE_FACTOR = 50
"""Pause between two walks in units of their duration, if that is longer."""
PIECE_BYTES = 64 << 10
MOST_FILES = 32
MOST_NAMES = 128
LONGEST_PREFIX = 40
MOST_DEPTH = 8
MOST_ENTRIES, MOST_ENTRIES_A_LOOK = 20_000, 500
LAST_SECONDS, MOST_LAST_BYTES = 1.0, 4 << 20
_NAME = re.compile(r".*\.tfevents\.\d.*")
_SIDES = re.compile(r"(?:train|training|val|valid|validation|eval|evaluation|test)\Z")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SKIPPED = ("__pycache__", "node_modules", "site-packages")


class _Place(NamedTuple):
    """Identity of a file."""

    device: int
    inode: int


class _Tail:
    """An open event file; ``offset`` is the start of its next record."""

    def __init__(self, descriptor: int, prefix: str, offset: int) -> None:
        self.descriptor, self.prefix, self.offset = descriptor, prefix, offset

    def read(self, known: Callable[[str], bool]) -> List[Value]:
        """Return the values of the next piece.

        Args:
            known: whether a metric of this name is accepted.

        Raises:
            BrokenFileError, OSError: the file is not readable any more.
        """
        size = os.fstat(self.descriptor).st_size
        if size - self.offset < HEAD_BYTES:
            if size < self.offset:
                self._check_cut(size)
            return []
        data = os.pread(self.descriptor, PIECE_BYTES, self.offset)
        piece = read_records(data, self.offset)
        self.offset = piece.end
        named = [one._replace(name=metric_name(self.prefix + one.name)) for one in piece.values]
        return [one for one in named if one.name and known(one.name)]

    def _check_cut(self, size: int) -> None:
        """Start again if a file was truncated; a record that is still written counts as whole."""
        if size == 0:
            self.offset = 0


class EventFiles:
    """The event files of one run.

    Args:
        run, spec: the run; its directory of work, and its checkpoints on this node, are searched.
        store: stores a line of reports; False if it cannot now.
        clock: seconds.
        resumed: continue where an earlier process was killed.
    """

    def __init__(
        self,
        run: Run,
        spec: RunSpec,
        store: Callable[[bytes], bool],
        clock: Callable[[], float],
        *,
        resumed: bool = False,
    ) -> None:
        self._store, self._clock = store, clock
        self._roots = _roots_of(run, spec) if spec.env.get(SWITCH) != "0" else []
        self._state = run.file(STATE_FILE)
        self._started = _started_at(run)
        self._known: Dict[_Place, Optional[_Tail]] = {}
        self._offsets: Dict[_Place, int] = {}
        self._directories: List[str] = []
        self._names: Dict[str, None] = {}
        self._waiting: List[bytes] = []
        self._walk: Optional[Iterator[bool]] = None
        self._walked_at = self._next_walk = self._looked_at = -1.0
        self._is_first = not resumed
        if resumed:
            self._resume()

    def look(self) -> None:
        """Read one piece of each file that has grown, if a check is due."""
        now = self._clock()
        if not self._roots or now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        self._search(now)
        self._read_piece()

    def finish(self) -> None:
        """Read the rest of all files within bounds, and close them."""
        end, left = self._clock() + LAST_SECONDS, MOST_LAST_BYTES
        if self._roots:
            self._walk = self._walk or self._walked()
            while self._clock() < end and self._step_walk():
                pass
            while left > 0 and self._clock() < end and self._read_piece():
                left -= PIECE_BYTES
        for tail in self._known.values():
            if tail is not None:
                os.close(tail.descriptor)
        self._known = {}

    # -- reading -------------------------------------------------------------------------------

    def _read_piece(self) -> bool:
        """Read a piece of the next file that has more; returns whether there was one."""
        if not self._flush():
            return False
        for place, tail in list(self._known.items()):
            if tail is None:
                continue
            before = tail.offset
            try:
                values = tail.read(self._is_known)
            except (BrokenFileError, OSError):
                os.close(tail.descriptor)
                self._known[place] = None  # not read again
                continue
            if tail.offset != before:
                self._known[place] = self._known.pop(place)  # the others come first next time
                self._waiting += report_lines(values)
                self._flush()
                return True
        return False

    def _flush(self) -> bool:
        """Store the lines read so far, and then the offsets; False while the disk is full."""
        if not self._waiting:
            return True
        while self._waiting:
            if not self._store(self._waiting[0]):
                return False
            del self._waiting[0]
        self._note()
        return True

    def _is_known(self, name: str) -> bool:
        if name not in self._names and len(self._names) < MOST_NAMES:
            self._names[name] = None
        return name in self._names

    def _note(self) -> None:
        """Store the offsets, so that the successor of a killed process repeats nothing."""
        files = [[*place, -1 if one is None else one.offset] for place, one in self._known.items()]
        text = json.dumps({"files": files, "directories": self._directories})
        try:
            system.replace_file(self._state, text.encode("ascii"))
        except OSError:
            pass  # the disk is full

    def _resume(self) -> None:
        found = system.read_json(self._state) or {}
        try:
            self._directories = [str(name) for name in found.get("directories", [])][:MOST_FILES]
            self._offsets = {
                _Place(int(device), int(inode)): int(offset)
                for device, inode, offset in found.get("files", [])
            }
        except (TypeError, ValueError):
            return  # at level none, a job may have changed the file

    # -- searching -----------------------------------------------------------------------------

    def _search(self, now: float) -> None:
        if self._walk is None:
            if now < self._next_walk:
                return
            self._walk, self._walked_at = self._walked(), now
        if not self._step_walk():
            spent = self._clock() - self._walked_at
            self._next_walk = self._clock() + max(WALK_SECONDS, min(600.0, IDLE_FACTOR * spent))

    def _step_walk(self) -> bool:
        """Continue the walk by a bounded number of names; False at its end."""
        if self._walk is not None and next(self._walk, False):
            return True
        self._walk, self._is_first = None, False
        return False

    def _walked(self) -> Iterator[bool]:
        """Search the directories for new files; yields True after some names."""
        left = MOST_ENTRIES
        for root in self._roots:
            waiting: List[Tuple[str, ...]] = [()]
            while waiting and left > 0:
                parts = waiting.pop()
                for name, is_directory in self._listed(root, parts, left):
                    left -= 1
                    if left % MOST_ENTRIES_A_LOOK == 0:
                        yield True
                    if is_directory and len(parts) < MOST_DEPTH:
                        waiting.append((*parts, name))

    def _listed(self, root: str, parts: Tuple[str, ...], most: int) -> Iterator[Tuple[str, bool]]:
        """Yield names and kinds in a directory; event files are opened here."""
        directory = _opened_below(root, parts)
        if directory < 0:
            return
        try:
            with os.scandir(directory) as entries:
                for _, entry in zip(range(most), entries):  # noqa: B905 - strict: Python 3.10
                    name = entry.name
                    if name.startswith(".") or name in _SKIPPED:
                        yield name, False
                        continue
                    if _NAME.fullmatch(name):
                        self._open(directory, name, "/".join(parts))
                    yield name, entry.is_dir(follow_symlinks=False)
        except OSError:
            return  # removed meanwhile
        finally:
            os.close(directory)

    def _open(self, directory: int, name: str, folder: str) -> None:
        try:
            descriptor = system.open_regular(name, any_owner=True, dir_fd=directory)
        except OSError:
            return
        found = os.fstat(descriptor)
        place = _Place(found.st_dev, found.st_ino)
        if place in self._known or found.st_nlink != 1 or len(self._known) >= MOST_FILES:
            os.close(descriptor)
            return
        # A file of an earlier training, from the source or a checkpoint, is read from its end.
        is_old = self._is_first and found.st_mtime <= self._started
        offset = self._offsets.get(place, found.st_size if is_old else 0)
        if offset < 0:
            os.close(descriptor)
            self._known[place] = None
            return
        self._known[place] = _Tail(descriptor, self._prefix(folder), offset)

    def _prefix(self, folder: str) -> str:
        """Return the part of names for a directory: empty for the first one without a data set."""
        last = folder.rpartition("/")[2][:LONGEST_PREFIX]
        if _SIDES.match(last):
            return f"{last}/"
        if folder not in self._directories and len(self._directories) < MOST_FILES:
            self._directories.append(folder)
        return "" if self._directories[:1] == [folder] else f"{last}/"


def _roots_of(run: Run, spec: RunSpec) -> List[str]:
    """Return the searched directories: a shared file system could block the caller."""
    found = [run.file(protocol.WORK_DIR)]
    if not spec.checkpoint_dir:
        found.append(protocol.checkpoint_dir(run.store.root, spec))
    return found


def _started_at(run: Run) -> float:
    try:
        return os.lstat(run.file(protocol.GO_FILE)).st_mtime
    except OSError:
        return 0.0


def _opened_below(root: str, parts: Tuple[str, ...]) -> int:
    """Open a directory below another one without following links; -1 if that is not possible."""
    try:
        found = os.open(root, _DIRECTORY)
        for part in parts:
            above = found
            try:
                found = os.open(part, _DIRECTORY, dir_fd=above)
            finally:
                os.close(above)
    except OSError:
        return -1
    return found
