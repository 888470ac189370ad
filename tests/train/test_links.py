"""The probe of links as real processes of this host."""

import json
import os
import socket
import subprocess
import sys

import pytest

from scheduling.core.grids.link_documents import read_links

ADDRESSES = ["n1/0/0", "n1/0/1", "n2/0/0"]


def probed(tmp_path, *, ranks: int, hide_torch: bool) -> dict:
    """The document that a job with ``ranks`` devices reports."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    reports = tmp_path / "reports"
    blocked = tmp_path / "blocked"
    if hide_torch:
        (blocked / "torch").mkdir(parents=True)
        (blocked / "torch" / "__init__.py").write_text("raise ImportError")
    path = os.pathsep.join([str(blocked), "src"])
    shared = os.environ | {
        "PYTHONPATH": path,
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TESSERA_JOB_REPORTS": str(reports),
    }
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tessera.train.links"], env=shared | {"RANK": str(rank)}
        )
        for rank in range(ranks)
    ]
    try:
        assert [process.wait(120) for process in running] == [0] * ranks
    finally:
        for process in running:
            process.kill()
    lines = [json.loads(line) for line in reports.read_text().splitlines()]
    (document,) = [line for line in lines if line.get("event") == "profile"]
    return document


def test_tcp_measures_sends_to_each_other_process(tmp_path):
    document = probed(tmp_path, ranks=3, hide_torch=True)

    node, network = read_links(document, ADDRESSES, ["device", "socket", "node"])

    assert document["transport"] == "tcp"
    assert (node.link_class, network.link_class) == ("socket", "network")
    for one in (node, network):
        assert {point.primitive for point in one.points} == {"send"}
        assert one.points[0].seconds < one.points[-1].seconds < 5.0


@pytest.mark.torch
def test_gloo_measures_all_reduces_of_groups_too(tmp_path):
    document = probed(tmp_path, ranks=4, hide_torch=False)

    (one,) = read_links(document, ["n/0", "n/1", "n/2", "n/3"], ["device", "node"])

    assert document["transport"] == "gloo"
    assert {(p.primitive, p.group) for p in one.points} == {
        ("send", 2),
        ("all_reduce", 2),
        ("all_reduce", 4),
    }
