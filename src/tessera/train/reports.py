"""Training reports as JSON lines over the node's socket or in the job's file.

The socket is next to ``$TESSERA_JOB_REPORTS``; its token is in the directory of the secrets.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import socket
import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Tuple, Union

from tessera.train.environment import job

SOCKET_NAME, TOKEN_NAME = "reports.sock", ".reports-token"
MOST_WAITING = 256
CLOSE_SECONDS = 2.0
LONGEST_LINE = 64 << 10
_LONGEST_PATH = 100
MIN_SECONDS = 0.1
MOST_EACH = 200
SHARED_NAME = "shared"
SHARED_SECONDS = 0.5
MOST_POINT_BYTES = 40 << 10
"""Bytes of points in a line, about; of more steps, every second one is left out, repeatedly."""
LONGEST_NAME, MOST_METRICS = 100, 128
_UNNAMED = re.compile(r"[^A-Za-z0-9_ ./:@%()+-]")
_AVERAGED = ("samples", "step_seconds", "sync_seconds")
"""Fields averaged over the steps of a line."""


class Channel:
    """Sends lines in order, and never blocks the training.

    Args:
        path: path of the file of reports.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.join(os.path.dirname(path), SOCKET_NAME)
        self._token = _token() if os.path.lexists(self._path) else b""
        self._socket: Optional[socket.socket] = None
        self._waiting: Deque[bytes] = deque()
        self._pid = os.getpid()

    def send(self, line: bytes) -> List[bytes]:
        """Send a line, or queue it while the node's queue is full.

        Returns:
            Lines to append to the file instead, in order: the socket is missing or unread,
            more than ``MOST_WAITING`` lines wait, or the line is too long for a datagram.
        """
        if not self._token or len(line) > LONGEST_LINE:
            return [line]
        if self._pid != os.getpid():  # a forked child: its parent sends the queued lines
            self._pid = os.getpid()
            self._waiting.clear()
        self._waiting.append(line)
        self._send_waiting(0.0)
        return self._taken() if not self._token or len(self._waiting) > MOST_WAITING else []

    def close(self) -> List[bytes]:
        """Send the queued lines; gives up after ``CLOSE_SECONDS`` without progress.

        Returns:
            The lines that could not be sent.
        """
        if self._waiting and self._pid == os.getpid():
            self._send_waiting(CLOSE_SECONDS)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        return self._taken()

    def _taken(self) -> List[bytes]:
        left = list(self._waiting)
        self._waiting.clear()
        return left

    def _send_waiting(self, seconds: float) -> None:
        try:
            line = self._connected()
            line.settimeout(seconds)
            while self._waiting:
                line.send(self._token + b" " + self._waiting[0])
                self._waiting.popleft()
        except (BlockingIOError, socket.timeout):
            pass  # the queue is full
        except OSError:
            self._token = b""  # no receiver: append to the file from now on

    def _connected(self) -> socket.socket:
        if self._socket is None:
            found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                _connect(found, self._path)
            except OSError:
                found.close()
                raise
            self._socket = found
        return self._socket


def _connect(line: socket.socket, path: str) -> None:
    """Connect to a path of any length, through a descriptor of its directory."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        line.connect(path)
        return
    folder, name = os.path.split(path)
    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        line.connect(f"/proc/self/fd/{directory}/{name}")
    finally:
        os.close(directory)


def _token() -> bytes:
    path = os.path.join(os.environ.get("TESSERA_JOB_SECRETS_DIR", ""), TOKEN_NAME)
    try:
        with open(path, "rb") as file:
            return file.read(128)
    except OSError:
        return b""


class Reporter:
    """Sends reports to the node, at most one line each ``MIN_SECONDS``.

    Steps in between are not lost: the next line covers them, with the means of their samples and
    seconds and their number in ``steps``, so that throughput
    (``samples / step_seconds``) and totals (``samples * steps``) stay correct.

    Args:
        path: the file, for lines that the socket does not accept.
        local_rank: index of the process in the member, as several may share the file.
    """

    def __init__(self, path: str, local_rank: int = 0) -> None:
        self._path = path
        self._whose = {"local_rank": local_rank} if local_rank else {}
        self._channel = Channel(path)
        self._descriptor = -1
        self._written_at = self._looked_at = -math.inf
        self._shared = os.path.join(os.path.dirname(path), SHARED_NAME)
        self._is_shared = False
        self._each: Deque[List[float]] = deque(maxlen=MOST_EACH)
        self._waiting: Dict[str, Any] = {}
        self._points: List[List[Any]] = []
        self._size = 0
        self._steps = 0
        self._sums = dict.fromkeys(_AVERAGED, 0.0)
        self._counts = dict.fromkeys(_AVERAGED, 0)

    def add(
        self,
        *,
        step: int,
        samples: Optional[float],
        step_seconds: Optional[float],
        loss: Optional[float],
        sync_seconds: Optional[float] = None,
        metrics: Optional[Dict[str, Any]] = None,
        **how: Any,
    ) -> None:
        """Add one step, and write a line unless one has just been written.

        Args:
            step: its number; further arguments as `report` takes them.
            samples: as above.
            step_seconds: as above.
            loss: as above.
            sync_seconds: as above.
            metrics: further values by name.
            how: further fields of the newest step, if not None.
        """
        self._steps += 1
        told = {name: value for name, value in how.items() if value is not None}
        self._waiting = {"step": _whole(step), "loss": _finite(loss), **told}
        self._sum("samples", samples)
        self._sum("step_seconds", step_seconds)
        self._sum("sync_seconds", sync_seconds)
        self._note_each(_finite(step_seconds))
        self._add_point(how.get("epoch"), {"loss": loss, **(metrics or {})})
        if time.monotonic() - self._written_at >= MIN_SECONDS:
            self.flush()

    def _note_each(self, seconds: Optional[float]) -> None:
        """Keep start and end of a step by the boot clock, while the device has guests."""
        now = time.monotonic()
        if now - self._looked_at >= SHARED_SECONDS:
            self._looked_at = now
            self._is_shared = os.path.exists(self._shared)
        if self._is_shared and seconds is not None:
            end = time.clock_gettime(time.CLOCK_BOOTTIME)
            self._each.append([round(end - seconds, 6), round(end, 6)])

    def _add_point(self, epoch: Optional[float], values: Dict[str, Any]) -> None:
        step, known = self._waiting["step"], _metrics(values)
        if not known or step is None:
            return
        self._points.append([step, round(time.time(), 3), epoch, known])
        self._size += _size(known)
        while self._size > MOST_POINT_BYTES and len(self._points) > 1:
            del self._points[-2::-2]  # keeps the newest point
            self._size = sum(_size(point[3]) for point in self._points)

    def _sum(self, name: str, value: Optional[float]) -> None:
        number = _finite(value)
        if number is not None:
            self._sums[name] += number
            self._counts[name] += 1

    def flush(self) -> None:
        """Write the pending line."""
        if not self._waiting:
            return
        line = {
            "time": round(time.time(), 3),
            "steps": self._steps,
            "samples": self._mean("samples"),
            "step_seconds": self._mean("step_seconds"),
            **self._waiting,
            **self._whose,
        }
        sync = self._mean("sync_seconds")
        if sync is not None:
            line["sync_seconds"] = sync
        if self._each:
            line["each"] = list(self._each)
            self._each.clear()
        if self._points:
            line["points"] = self._points
        self._waiting, self._steps, self._points, self._size = {}, 0, [], 0
        self._written_at = time.monotonic()
        self._write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")

    def report_event(self, event: str, facts: Dict[str, Any]) -> None:
        """Write a line about an event, after the pending one."""
        self.flush()
        line = {"time": round(time.time(), 3), "event": event, **facts}
        self._write(json.dumps(line, separators=(",", ":"), default=str) + "\n")

    def report_sharing(self, fields: Dict[str, Any]) -> None:
        """Write a line about this run as a guest or holder of a device, at once."""
        line = {"time": round(time.time(), 3), "sharing": fields, **self._whose}
        self._write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")

    def close(self) -> None:
        """Write the pending line, and close socket and file."""
        self.flush()
        for line in self._channel.close():
            self._append(line)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _mean(self, name: str) -> Optional[float]:
        total, count = self._sums[name], self._counts[name]
        self._sums[name], self._counts[name] = 0.0, 0
        return _finite(total / count) if count else None

    def _write(self, line: str) -> None:
        for content in self._channel.send(line.encode("ascii")):
            self._append(content)

    def _append(self, line: bytes) -> None:
        try:
            if self._descriptor < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o600)
            os.write(self._descriptor, line)  # one call, so that lines do not interleave
        except OSError:
            pass  # a full disk must not end the training


def _finite(value: Any) -> Optional[float]:
    """Convert to a finite number, also from NumPy and torch; None for other values."""
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _metrics(values: Dict[str, Any]) -> Dict[str, Union[float, str]]:
    """Return the numbers among the values; NaN and infinities as strings: JSON has none."""
    found: Dict[str, Union[float, str]] = {}
    for name, value in values.items():
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            continue
        found[_UNNAMED.sub("_", name)[:LONGEST_NAME]] = (
            number if math.isfinite(number) else str(number)
        )
        if len(found) == MOST_METRICS:
            break
    return found


def _size(values: Dict[str, Union[float, str]]) -> int:
    return 60 + sum(len(name) + 28 for name in values)


def _whole(value: Any) -> Optional[int]:
    number = _finite(value)
    return None if number is None else int(number)


_reporters: Dict[str, Reporter] = {}


def report(
    *,
    step: int,
    samples: Optional[float] = None,
    step_seconds: Optional[float] = None,
    loss: Optional[float] = None,
    batch: Optional[int] = None,
    accumulation: Optional[int] = None,
    noise: Optional[Tuple[float, float]] = None,
    sync_seconds: Optional[float] = None,
    efficiency: Optional[float] = None,
    initial_batch: Optional[int] = None,
    epoch: Optional[float] = None,
    total_steps: Optional[int] = None,
    **metrics: Any,
) -> None:
    """Report a finished step; call it at every step. It takes microseconds.

    Args:
        step: number of the step, counted over the whole training.
        samples: samples of this process in the step.
        step_seconds: duration of the step, without the wait of a throttle afterwards.
        loss: loss of the step.
        batch: samples of all processes in the step, if it may change.
        accumulation: micro-batches of each process in the step.
        noise: squared norm of the true gradient, and variance of the initial batch's gradient.
        sync_seconds: the part of the step in which the processes only exchanged gradients.
        efficiency: progress per sample against that of the initial batch, above 0 to 1.
        initial_batch: batch of the chosen learning rate, if the batch may change.
        epoch: passes over the data so far, with a fraction.
        total_steps: number of the last step of the training, if known.
        metrics: further numbers for charts, by name, for example ``accuracy=0.9`` or
            ``**{"val/loss": 0.4}``; NaN and infinity too. Of steps that follow each other faster
            than the lines can hold, some are left out.
    """
    reporter = _reporter()
    if reporter is not None:
        reporter.add(
            step=step,
            samples=samples,
            step_seconds=step_seconds,
            loss=loss,
            batch=_whole(batch),
            accumulation=_whole(accumulation),
            noise=None if noise is None else [_finite(number) for number in noise],
            sync_seconds=sync_seconds,
            efficiency=_finite(efficiency),
            initial_batch=_whole(initial_batch),
            epoch=_finite(epoch),
            total_steps=_whole(total_steps),
            metrics=metrics,
        )


def report_event(event: str, **facts: Any) -> None:
    """Report an event of the training, with facts as JSON values.

    Args:
        event: ``checkpoint``, ``checkpoint-failed``, ``checkpoint-broken``, ``resumed``;
            ``acknowledged`` (reason) after a notice to leave;
            ``determinism`` (level, refused, obstacles: reasons why D2 is not possible) when
            training starts, ``layout`` (step, counts: logical workers of each process) then and
            when they
            have moved, ``batch`` (step, batch, accumulation) when it changes.
        facts: fields of the event.
    """
    reporter = _reporter()
    if reporter is not None:
        reporter.report_event(event, facts)


def report_parameters(parameters: Any) -> None:
    """Report the sizes of the gradients that the processes exchange; call it once in a process.

    The policy `tiresias` lets a job with one dominant tensor start on one node only.

    Args:
        parameters: a model with ``parameters()``, or an iterable of tensors, arrays or bytes.
            Tensors without a gradient do not count.
    """
    reporter = _reporter()
    if reporter is None:
        return
    found = parameters.parameters() if hasattr(parameters, "parameters") else parameters
    sizes = [_bytes_of(one) for one in found if getattr(one, "requires_grad", True)]
    if sizes and max(sizes) > 0:
        reporter.report_event("parameters", {"largest": max(sizes), "total": sum(sizes)})


def _bytes_of(parameter: Any) -> int:
    if hasattr(parameter, "element_size"):  # a tensor
        return int(parameter.numel()) * int(parameter.element_size())
    return int(getattr(parameter, "nbytes", parameter))


def report_sharing(**fields: Any) -> None:
    """Report this run as a guest or holder of a device, see ``files.GuestReport``."""
    reporter = _reporter()
    if reporter is not None:
        reporter.report_sharing(fields)


def _reporter() -> Optional[Reporter]:
    path = os.environ.get("TESSERA_JOB_REPORTS")
    if not path:
        return None
    reporter = _reporters.get(path)
    if reporter is None:
        reporter = _reporters[path] = Reporter(path, job().local_rank)
        atexit.register(reporter.close)
    return reporter
