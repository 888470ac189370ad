"""The demo as a companion of the supervisor."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from demo.companion import Demo
from portal.supervisor.files import DataDir


def test_the_lines_warn_when_jobs_are_not_isolated(tmp_path: Path) -> None:
    demo = Demo(DataDir(root=tmp_path))
    demo.source.parent.mkdir(parents=True)

    def lines(**found: object) -> str:
        level = {"cause": "", "detail": "", "is_root": False, **found}
        demo.source.write_text(json.dumps([{"isolation": level}]))
        return "\n".join(demo.lines())

    assert "WARNING" in lines(level="none", cause="seccomp", detail="unshare is refused")
    assert "unshare is refused" in lines(
        level="none", cause="seccomp", detail="unshare is refused"
    )
    assert "runs as root" in lines(level="user", is_root=True)
    assert "WARNING" not in lines(level="namespace")
    demo.source.unlink()
    assert demo.lines() == []


@contextmanager
def something_that_says(text: bytes) -> Iterator[tuple[str, int]]:
    """A listener that says a word to one guest; its place."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with suppress(OSError):
                guest, _ = listener.accept()
                with guest:
                    guest.sendall(text)

        thread = threading.Thread(target=greet)
        thread.start()
        yield listener.getsockname()
        # Whoever had no guest is let go.
        socket.create_connection(listener.getsockname()).close()
        thread.join(60)


@pytest.mark.parametrize(
    ("said", "is_alive"), [(b"SSH-2.0-x\r\n", True), (b"HTTP/1.1 400", False)]
)
def test_the_process_of_the_nodes_lives_when_one_of_its_addresses_cannot_be_reached(
    tmp_path: Path, said: bytes, is_alive: bool
) -> None:
    demo = Demo(DataDir(root=tmp_path))
    with something_that_says(said) as (host, port), socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        places = [nobody.getsockname(), (host, port)]
        demo.source.parent.mkdir(parents=True)
        demo.source.write_text(json.dumps([{"host": h, "port": p} for h, p in places]))

        assert demo.probes()["demo-nodes"]() is is_alive
