"""Storages on a node: probes of sources, mount points in jobs, read-only mounts, and escapes."""

import fcntl
import hashlib
import json
import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session import ALICE, PLACES, Session, declare_isolation, make_spec, node

from tessera import protocol, storage
from tessera.isolation import NONE, USER, VisiblePath
from tessera.node import confinement, storages, visibility
from tessera.node.runs import Store
from tessera.protocol import ContainerRef, ProtocolError
from tessera.storage import StorageMount, StorageProbe, mount_problem, nested_pairs, source_problem

PARTS = st.sampled_from(["..", ".", "", "data", ".ssh", "a b", "etc", "proc", "x,ro", "é", "-o"])


@pytest.mark.parametrize(
    "mount", ["/data", "/data/sets", "/workspace", "/mnt/a.b_c-d", "/home/user/data"]
)
def test_places_outside_of_the_system_are_mount_points(mount: str) -> None:
    assert mount_problem(mount) is None


@pytest.mark.parametrize(
    "mount",
    [
        *("", "/", "data", "/data/", "//data", "/data/../etc", "/data/./x", "/.ssh", "/a/.b"),
        *("/etc", "/etc/x", "/usr/local/data", "/proc/1", "/dev/shm", "/tmp", "/tmp/x", "/opt/x"),
        *("/tessera", "/tessera/work", "/run/x", "/var/data", "/root", "/a b", "/a,ro", "/a:b"),
    ],
)
def test_places_of_the_system_or_with_odd_names_are_no_mount_points(mount: str) -> None:
    assert mount_problem(mount)


@pytest.mark.parametrize("source", ["/srv/data", "/var/lib/sets", "nas:/sets", "[fd00::1]:/a/b"])
def test_directories_and_exports_are_sources(source: str) -> None:
    assert source_problem(source) is None


@pytest.mark.parametrize(
    "source",
    [
        *("", "data", "/", "/etc", "/etc/ssh", "/proc/self", "/root/x", "/srv/../etc", "/run/x"),
        *("nas:", "nas:sets", ":/sets", "-o:/x", "nas:/a,rw", "nas:/a b", "nas:/../x", "n,s:/a"),
    ],
)
def test_other_texts_are_no_sources(source: str) -> None:
    assert source_problem(source)


@given(st.lists(PARTS, min_size=1, max_size=5))
def test_no_accepted_place_escapes_or_hides(parts: list[str]) -> None:
    path = "/" + "/".join(parts)

    if mount_problem(path) is None or source_problem(path) is None:
        assert not {"..", ".", ""} & set(parts)
        assert not any(character in path for character in " ,:\\")
        assert not any(part.startswith((".", "-")) for part in parts)


def test_nested_paths_are_found_by_their_parts() -> None:
    pairs = nested_pairs(["/a", "/ab", "/a/b", "/c", "/a"])

    assert sorted(pairs) == [("/a", "/a"), ("/a", "/a/b"), ("/a", "/a/b")]


# -- probes --------------------------------------------------------------------------------------


def test_a_probe_tells_directories_from_links_and_files(tmp_path: Path) -> None:
    root = tmp_path / ".tessera"
    for name in ("data", ".tessera/runs", "real/inner"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    names = ("data", "absent", "file", "link", "link/inner", ".tessera/runs")
    paths = [str(tmp_path / name) for name in names]

    found = storages.probe(str(root), [*paths, "nas:/sets"])

    assert [one.cause for one in found] == [
        *("", storage.MISSING, storage.NOT_DIRECTORY, storage.LINKED, storage.LINKED),
        *(storage.RUNNER_DIRECTORY, storage.NOT_MOUNTED),
    ]
    assert found[0].total_bytes > found[0].free_bytes > 0
    assert [one.source for one in found] == [*paths, "nas:/sets"]


def test_a_source_that_hangs_is_not_looked_at_by_a_second_process(tmp_path: Path) -> None:
    root = tmp_path / ".tessera"
    locks = root / storages.LOCKS_DIR
    locks.mkdir(parents=True)
    name = hashlib.sha256(str(tmp_path).encode()).hexdigest()[:32]
    with (locks / name).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        (found,) = storages.probe(str(root), [str(tmp_path)])

    assert found.cause == storage.NOT_RESPONDING


def test_a_probe_looks_at_more_sources_than_it_may_open_descriptors(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"data{number}") for number in range(storages.AT_ONCE * 3)]
    for path in paths:
        Path(path).mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(paths), hard))
    try:
        found = storages.probe(str(tmp_path / ".tessera"), paths)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert [(one.source, one.cause) for one in found] == [(path, "") for path in paths]


def test_a_probe_uses_descriptors_that_select_cannot(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        (found,) = storages.probe(str(tmp_path / ".tessera"), [str(tmp_path)])
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert not found.cause


def test_mounted_exports_are_read_from_the_table_of_the_kernel() -> None:
    table = (
        "36 35 98:0 / /mnt/my\\040sets rw,noatime shared:1 - nfs4 nas:/sets rw,vers=4.2\n"
        "37 35 98:1 / /home rw - nfs nas.example.org:/export/home rw\n"
        "39 35 98:2 / /mnt/all rw - nfs4 [fd00::1]:/ rw\n"
        "40 35 98:3 /one /mnt/one rw - nfs4 nas:/models rw\n"
        "41 35 98:3 / /mnt/models rw - nfs4 nas:/models/ rw\n"
        "38 35 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "damaged\n"
    )

    assert storages.mounted_exports(table) == {
        "nas:/sets": "/mnt/my sets",
        "nas.example.org:/export/home": "/home",
        "[fd00::1]:/": "/mnt/all",
        "nas:/models": "/mnt/models",
    }


# -- runs ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=PLACES, ids="-".join)
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, Session]]:
    with node(*request.param) as session:
        yield request.param[0], session


def test_a_job_sees_storages_at_their_places_and_read_only_ones_are_read_only(
    place: tuple[str, Session],
) -> None:
    level, session = place
    for name in ("sets", "out"):
        (session.home / name).mkdir()
        (session.home / name).chmod(0o777)
        (session.home / name / "file").write_text(name)
    mounts = [
        StorageMount("sets", str(session.home / "sets"), "/data"),
        StorageMount("out", str(session.home / "out"), "/mnt/out", writable=True),
    ]

    status, log = session.run(
        "cat /data/file /mnt/out/file; touch /data/x; touch /mnt/out/x;"
        " grep -E ' /(data|mnt/out) ' /proc/self/mounts | grep -c nosuid,nodev",
        isolation=level,
        uid=ALICE if level == USER else None,
        storage=mounts,
    )

    assert status.isolation == level
    assert log.startswith("setsout")
    assert "touch: cannot touch '/data/x': Read-only file system" in log
    assert log.endswith("2\n")
    assert (session.home / "out" / "x").exists()
    assert not (session.home / "sets" / "x").exists()


def test_a_session_reports_which_sources_its_node_has(place: tuple[str, Session]) -> None:
    session = place[1]
    sources = [str(session.home), f"{session.home}/absent", "nas:/sets"]

    reply = session.reply(session.send(protocol.STORAGES, sources=sources))

    causes = [StorageProbe.from_json(one).cause for one in reply["storages"]]
    assert causes == ["", storage.MISSING, storage.NOT_MOUNTED]


def test_a_storage_that_a_link_replaces_is_not_mounted(place: tuple[str, Session]) -> None:
    level, session = place
    (session.home / "victim").mkdir()
    (session.home / "victim" / "key").write_text("of-another-tenant")
    (session.home / "swapped").symlink_to(session.home / "victim")

    status, log = session.run(
        "cat /data/key",
        isolation=level,
        uid=ALICE if level == USER else None,
        storage=[StorageMount("swapped", str(session.home / "swapped"), "/data")],
    )

    assert status.exit is not None
    assert (status.exit.cause, status.exit.failure) == ("start-failed", "node")
    assert "is reached by a symbolic link" in status.exit.message
    assert "of-another-tenant" not in log


def test_a_node_without_sandboxes_refuses_storages(tmp_path: Path) -> None:
    declare_isolation(tmp_path, strongest=NONE)
    root = str(tmp_path / protocol.ROOT_DIR)
    mounts = [StorageMount("sets", "/srv/sets", "/data")]

    with pytest.raises(ProtocolError) as refused:
        confinement.level_for(root, make_spec(storage=mounts))

    assert refused.value.code == "isolation-not-available"
    assert confinement.level_for(root, make_spec()) == NONE


@pytest.fixture
def binds_of(tmp_path: Path) -> Callable[..., list[tuple[str, str, bool]]]:
    """The binds of a container on a node with its home at ``tmp_path/home``."""
    store = Store(str(tmp_path / "home" / protocol.ROOT_DIR))
    store.create()

    def ask(*mounts: StorageMount, **changes: object) -> list[tuple[str, str, bool]]:
        spec = make_spec(storage=list(mounts), **changes)
        spec = replace(spec, container=ContainerRef(spec.run_id, "/run/docker.sock"))
        return visibility.of_container(store.run(spec.run_id), spec).binds

    return ask


def test_containers_get_storages_but_those_that_the_engine_mounts(
    binds_of: Callable[..., list[tuple[str, str, bool]]], tmp_path: Path
) -> None:
    (tmp_path / "sets").mkdir()

    binds = binds_of(
        StorageMount("sets", str(tmp_path / "sets"), "/data"),
        StorageMount("home", "nas:/home", "/home/all", by_engine=True),
    )

    assert binds == [(str(tmp_path / "sets"), "/data", False)]


def test_a_storage_that_does_not_respond_ends_the_start_at_a_limit(tmp_path: Path) -> None:
    root = tmp_path / ".tessera"
    locks = root / storages.LOCKS_DIR
    locks.mkdir(parents=True)
    name = hashlib.sha256(str(tmp_path).encode()).hexdigest()[:32]
    mount = StorageMount("sets", str(tmp_path), "/data")
    with (locks / f"{name}.run").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        with pytest.raises(ProtocolError, match=r"sets: .* does not respond") as refused:
            storages.binds_of(str(root), make_spec(storage=[mount]), seconds=0.1)

    assert (refused.value.code, refused.value.failure) == (storages.NOT_USABLE, protocol.NODE)


@pytest.mark.parametrize("name", ["home/.tessera", "home/.tessera/runs"])
def test_the_directory_of_the_runner_is_no_storage(
    binds_of: Callable[..., list[tuple[str, str, bool]]], tmp_path: Path, name: str
) -> None:
    with pytest.raises(ProtocolError, match="is in the runner's directory"):
        binds_of(StorageMount("x", str(tmp_path / name), "/data", writable=True))


@pytest.mark.parametrize("mount", ["same", "outer", "inner"])
def test_a_mount_point_may_not_contain_a_visible_path_nor_lie_in_one(
    binds_of: Callable[..., list[tuple[str, str, bool]]], tmp_path: Path, mount: str
) -> None:
    shown = tmp_path / "a" / "shown"
    shown.mkdir(parents=True)
    place = {"same": shown, "outer": shown.parent, "inner": shown / "in"}[mount]

    with pytest.raises(ProtocolError, match="conflicts with visible path") as refused:
        binds_of(
            StorageMount("x", str(tmp_path / "a"), str(place)),
            visible_paths=[VisiblePath(str(shown), writable=True)],
        )

    assert refused.value.failure == protocol.USER


def test_a_storage_with_the_home_of_the_runner_hides_it(
    binds_of: Callable[..., list[tuple[str, str, bool]]], tmp_path: Path
) -> None:
    binds = binds_of(StorageMount("all", str(tmp_path), "/data"))

    covers = [target for source, target, _ in binds if f"/{visibility.COVERS_DIR}/" in source]
    assert covers == ["/data/home"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"source": "/etc"}, "storage.source"),
        ({"mount": "/etc/x"}, "storage.mount"),
        ({"mount": "/data/../x"}, "storage.mount"),
        ({"by_engine": True}, "storage.by_engine"),
        ({"mode": "rw"}, "storage.mode"),
    ],
)
def test_a_malformed_mount_is_refused_by_the_node(changes: dict[str, object], named: str) -> None:
    fields = {"name": "sets", "source": "/srv/sets", "mount": "/data"}

    with pytest.raises(ProtocolError, match=named):
        StorageMount.from_json({**fields, **changes})


def test_nested_mount_points_are_refused_by_the_node() -> None:
    mounts = [
        {"name": n, "source": f"/srv/{n}", "mount": m} for n, m in (("a", "/d"), ("b", "/d/e"))
    ]

    with pytest.raises(ProtocolError, match="do not contain each other"):
        protocol.RunSpec.from_json(
            {**json.loads(json.dumps(make_spec().to_json())), "storage": mounts}
        )
