"""The library's end of the node's socket: nothing waits, nothing is lost, the file is the rest."""

import atexit
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tessera.train import reports
from tessera.train.reports import Channel, Reporter

TOKEN = b"5" * 32


class Node:
    """A socket where the node has it, with its token."""

    def __init__(self, root: Path) -> None:
        self.root, self.path = root, root / "reports.jsonl"
        (root / "secrets").mkdir()
        (root / "secrets" / reports.TOKEN_NAME).write_bytes(TOKEN)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        here = os.open(root, os.O_PATH)
        self.socket.bind(f"/proc/self/fd/{here}/{reports.SOCKET_NAME}")
        os.close(here)

    def lines(self) -> list[bytes]:
        """What has come since the last call, without the token."""
        found: list[bytes] = []
        while True:
            try:
                token, _, line = self.socket.recv(1 << 17).partition(b" ")
            except BlockingIOError:
                return found
            assert token == TOKEN
            found.append(line)


@pytest.fixture(params=["n", "n" * 120])
def a_node(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Node]:
    root = tmp_path / request.param
    root.mkdir()
    monkeypatch.setenv("TESSERA_JOB_SECRETS_DIR", str(root / "secrets"))
    found = Node(root)
    yield found
    found.socket.close()


def numbered(count: int) -> list[bytes]:
    return [b'{"number": %d}\n' % number for number in range(count)]


def test_a_line_is_one_datagram_with_the_token(a_node: Node) -> None:
    reporter = Reporter(str(a_node.path))
    reporter.report_event("line", {"number": 1})

    (line,) = a_node.lines()

    assert line.endswith(b'"event":"line","number":1}\n')
    assert not a_node.path.exists()
    reporter.close()


def test_lines_wait_in_order_while_the_queue_is_full(a_node: Node) -> None:
    sender, lines = Channel(str(a_node.path)), numbered(100)
    for line in lines:
        assert sender.send(line) == []

    received = a_node.lines()
    assert len(received) < 100
    while len(received) < 100:
        assert sender.send(b"\n") == []
        received += [line for line in a_node.lines() if line != b"\n"]

    assert received == lines
    sender.close()


def test_lines_that_are_not_received_go_to_the_file(a_node: Node) -> None:
    reporter = Reporter(str(a_node.path))
    for number in range(reports.MOST_WAITING + 100):
        reporter.report_event("line", {"number": number})
    reporter.close()

    sent, in_file = a_node.lines(), a_node.path.read_bytes().splitlines()

    assert 0 < len(sent) < 50
    numbers = [int(line.rsplit(b":", 1)[1].rstrip(b"}\n")) for line in (*sent, *in_file)]
    assert numbers == list(range(reports.MOST_WAITING + 100))


def test_without_a_receiver_lines_go_to_the_file_at_once(a_node: Node) -> None:
    sender = Channel(str(a_node.path))
    assert sender.send(b"1\n") == []
    a_node.socket.close()

    assert sender.send(b"2\n") == [b"2\n"]
    assert sender.send(b"3\n") == [b"3\n"]
    assert sender.close() == []


def test_without_the_token_only_the_file_is_used(a_node: Node) -> None:
    (a_node.root / "secrets" / reports.TOKEN_NAME).unlink()

    assert Channel(str(a_node.path)).send(b"1\n") == [b"1\n"]
    assert a_node.lines() == []


def test_a_line_above_the_limit_goes_to_the_file(a_node: Node) -> None:
    sender, line = Channel(str(a_node.path)), b"x" * reports.LONGEST_LINE + b"\n"

    assert sender.send(line) == [line]
    assert sender.send(line[2:]) == []
    assert a_node.lines() == [line[2:]]
    sender.close()


def test_a_forked_child_sends_its_own_lines_only(a_node: Node) -> None:
    sender, lines = Channel(str(a_node.path)), numbered(40)
    for line in lines:
        sender.send(line)
    received = a_node.lines()
    child = os.fork()
    if not child:
        left = sender.send(b"child\n")
        left += sender.close()
        os._exit(bool(left))
    assert os.waitpid(child, 0)[1] == 0

    received += a_node.lines()
    while len(received) < 41:
        sender.send(b"\n")
        received += [line for line in a_node.lines() if line != b"\n"]

    assert sorted(received) == sorted([*lines, b"child\n"])
    sender.close()


def test_the_exit_of_a_process_sends_queued_lines(
    a_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[Callable[[], object]] = []
    monkeypatch.setenv("TESSERA_JOB_REPORTS", str(a_node.path))
    monkeypatch.setattr(atexit, "register", registered.append)
    reports.report(step=1, samples=1)
    reports.report(step=2, samples=1)
    assert len(a_node.lines()) == 1

    registered[0]()

    assert b'"step":2' in a_node.lines()[0]


class Tensor:
    """The part of a tensor that sizes need."""

    def __init__(self, count: int, *, requires_grad: bool = True) -> None:
        self.count, self.requires_grad = count, requires_grad

    def numel(self) -> int:
        return self.count

    def element_size(self) -> int:
        return 4


class Model:
    def parameters(self) -> Iterator[Tensor]:
        yield from (Tensor(100), Tensor(30), Tensor(900, requires_grad=False))


@pytest.mark.parametrize("parameters", [Model(), [400, 120]])
def test_sizes_of_parameters_are_one_event(
    a_node: Node, monkeypatch: pytest.MonkeyPatch, parameters: object
) -> None:
    monkeypatch.setenv("TESSERA_JOB_REPORTS", str(a_node.path))
    monkeypatch.setattr(reports, "_reporters", {})

    reports.report_parameters(parameters)

    (line,) = a_node.lines()
    told = json.loads(line)
    assert (told["event"], told["largest"], told["total"]) == ("parameters", 400, 520)


def test_a_model_without_parameters_reports_nothing(
    a_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSERA_JOB_REPORTS", str(a_node.path))
    monkeypatch.setattr(reports, "_reporters", {})

    reports.report_parameters([])

    assert a_node.lines() == []
