"""What crosses the wire comes back as it was, and what is malformed is refused by name."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera import isolation, protocol
from tessera.protocol import (
    ArchiveSource,
    ContainerRef,
    Device,
    ExitRecord,
    GitSource,
    Inventory,
    IsolationProbe,
    NodeHello,
    ProtocolError,
    RunSpec,
    RunStatus,
    VisiblePath,
)
from tessera.storage import StorageMount

ATTEMPT = "0123456789abcdef0123456789abcdef"


def make_spec(**changes: object) -> RunSpec:
    """A small valid spec with some fields changed."""
    fields: dict[str, object] = {
        "run_id": f"{ATTEMPT}.worker.0",
        "job_id": "7",
        "job_name": "digits",
        "attempt": ATTEMPT,
        "role": "worker",
        "rank": 0,
        "command": "true",
    }
    return RunSpec(**{**fields, **changes})  # type: ignore[arg-type]


@given(
    command=st.text(
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1
    ).filter(str.strip),
    name=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50),
)
def test_a_spec_crosses_the_wire_unchanged(command: str, name: str) -> None:
    spec = make_spec(command=command, job_name=name, env={"A": command}, devices=[3, 1])

    line = protocol.encode_line({"run": spec.to_json()})

    assert line.count(b"\n") == 1
    assert RunSpec.from_json(protocol.decode_line(line)["run"]) == spec


@pytest.mark.parametrize(
    "changes",
    [
        {"source_git": GitSource(url="https://example.org/r.git", ref="main")},
        {"source_archive": ArchiveSource(sha256="a" * 64)},
        {"container": ContainerRef(name=f"{ATTEMPT}.worker.0", socket="/run/docker.sock")},
        {"max_duration_seconds": 5.0, "ports": [29500], "bind_host": "127.0.0.1"},
        {"isolation": "user", "uid": 71_001, "network": "own", "disk_bytes": 1 << 30},
        {"visible_paths": [VisiblePath("/srv/data"), VisiblePath("/srv/scratch", writable=True)]},
        {"visible_paths": [VisiblePath("/srv/saved", checkpoints=True)], "hidden_paths": ["/a/b"]},
        {"storage": [StorageMount("sets", "nas:/sets", "/data", by_engine=True)]},
    ],
)
def test_optional_parts_of_a_spec_cross_the_wire(changes: dict[str, object]) -> None:
    spec = make_spec(**changes)

    assert RunSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("run_id", "../../etc", "run id"),
        ("run_id", f"{ATTEMPT}.worker.1", "run.run_id"),
        ("run_id", f"{ATTEMPT}.worker.00", "run id"),
        ("run_id", f"{ATTEMPT}.worker.0\n", "run id"),
        ("rank", True, "run.rank"),
        ("rank", -1, "run.rank"),
        ("rank", "0", "run.rank"),
        ("command", "  \n", "run.command"),
        ("command", "a\0b", "run.command"),
        ("command", "\ud800", "run.command"),
        ("command", None, "run.command"),
        ("command", ["true"], "run.command"),
        ("env", {"A=B": "x"}, "run.env"),
        ("env", {"": "x"}, "run.env"),
        ("env", {"A": 1}, "run.env.A"),
        ("env", [], "run.env"),
        ("devices", [0, -1], "run.devices"),
        ("devices", "0", "run.devices"),
        ("cpus", float("nan"), "run.cpus"),
        ("cpus", float("inf"), "run.cpus"),
        ("cpus", 10**400, "run.cpus"),
        ("memory_bytes", 1.5, "run.memory_bytes"),
        ("limits_enforced", 1, "run.limits_enforced"),
        ("lease_seconds", 0, "run.lease_seconds"),
        ("log_segment_bytes", 64 << 20, "run.log_segment_bytes"),
        ("ports", [70000], "run.ports"),
        ("workdir", "a/../b", "run.workdir"),
        ("workdir", "/etc", "run.workdir"),
        ("source", {"kind": "ftp"}, "run.source.kind"),
        ("source", {"kind": "archive", "sha256": "../x"}, "64"),
        ("source", {"kind": "git", "url": "https://x", "depth": 1}, "run.source.depth"),
        ("source", "git", "run.source"),
        ("container", {"name": "a/b", "socket": "/s"}, "run.container.name"),
        ("container", {"name": "ab", "socket": "s"}, "run.container.socket"),
        ("isolation", "vm", "run.isolation"),
        ("uid", 0, "run.uid"),
        ("uid", True, "run.uid"),
        ("uid", 1 << 32, "run.uid"),
        ("visible_paths", ["/srv"], "visible_path"),
        ("visible_paths", [{"path": "/srv", "mode": "rw"}], "visible_path.mode"),
        ("visible_paths", [{"path": "/srv", "writable": 1}], "visible_path.writable"),
        ("visible_paths", [{"path": "/srv"}, {"path": "/srv", "writable": True}], "at most once"),
        (
            "visible_paths",
            [{"path": "/srv", "writable": True, "checkpoints": True}],
            "visible_path.checkpoints",
        ),
        ("hidden_paths", ["relative"], "run.hidden_paths"),
        ("hidden_paths", ["/proc/1"], "run.hidden_paths"),
        ("hidden_paths", [7], "run.hidden_paths"),
        ("network", "host", "run.network"),
        ("disk_bytes", -1, "run.disk_bytes"),
        ("protocol", 99, "run.protocol"),
        ("surprise", 1, "run.surprise"),
    ],
)
def test_a_malformed_spec_is_refused_by_the_name_of_the_field(
    field: str, value: object, named: str
) -> None:
    fields = {**make_spec().to_json(), field: value}

    with pytest.raises(ProtocolError) as refused:
        RunSpec.from_json(fields)

    assert named in refused.value.message


@pytest.mark.parametrize(
    "path",
    [
        *(
            "srv",
            "",
            "/",
            "//",
            "/srv/",
            "/srv//data",
            "/srv/../etc",
            "/srv/./x",
            "/a\nb",
            "/a\x7f",
        ),
        *("/proc", "/proc/1/environ", "/dev/sda", "/sys/fs", "/run/docker.sock", "/var/run/x"),
    ],
)
def test_a_path_that_cannot_be_shown_to_a_job_is_refused(path: str) -> None:
    with pytest.raises(ProtocolError, match=r"visible_path\.path"):
        VisiblePath.from_json({"path": path})


def test_a_path_whose_name_begins_like_a_refused_one_is_taken() -> None:
    for path in ("/process", "/device/a", "/srv/dev", "/.x", "/srv/..data"):
        assert VisiblePath.from_json({"path": path}) == VisiblePath(path)


def test_later_fields_of_a_spec_are_left_out_where_they_have_their_defaults() -> None:
    fields = make_spec().to_json()

    later = {"isolation", "uid", "visible_paths", "network", "disk_bytes", "checkpoint_dir"}
    later |= {"hidden_paths", "storage"}
    assert not later & set(fields)
    assert RunSpec.from_json(fields) == make_spec()
    changed = make_spec(uid=71_000).to_json()
    assert later & set(changed) == {"uid"}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_no_json_value_makes_a_reader_fail_in_another_way(value: object) -> None:
    for reader in (RunSpec, RunStatus, ExitRecord, NodeHello, Inventory):
        with pytest.raises(ProtocolError):
            reader.from_json(value)
    assert isinstance(ProtocolError.from_json(value), ProtocolError)


def test_a_status_of_another_version_is_read_without_its_unknown_fields() -> None:
    status = RunStatus(run_id=f"{ATTEMPT}.worker.0", phase=protocol.RUNNING, pid=5, pgid=5)

    fields = {**status.to_json(), "protocol": 9, "colour": "blue"}

    assert RunStatus.from_json(fields) == dataclasses.replace(status, protocol=9)


def test_an_earlier_versions_status_and_inventory_report_nothing_of_isolation() -> None:
    status = RunStatus(run_id=f"{ATTEMPT}.worker.0", phase=protocol.RUNNING, isolation="user")
    inventory = Inventory(devices=[], levels=["node", "device"], cpus=2, memory_bytes=1)
    fields = status.to_json()
    del fields["isolation"], fields["network"]
    assert RunStatus.from_json(fields) == dataclasses.replace(status, isolation="none")
    data = inventory.to_json()
    del data["isolation"]

    assert Inventory.from_json(data) == inventory


def test_a_status_with_its_level_and_network_crosses_the_wire() -> None:
    run_id = f"{ATTEMPT}.worker.0"
    status = RunStatus(run_id=run_id, phase=protocol.RUNNING, isolation="namespace", network="own")

    assert RunStatus.from_json(json.loads(json.dumps(status.to_json()))) == status
    for name in ("isolation", "network"):
        with pytest.raises(ProtocolError, match=name):
            RunStatus.from_json({**status.to_json(), name: "vm"})


def test_probed_levels_cross_the_wire_each_once() -> None:
    probes = [
        IsolationProbe("namespace", available=False, cause=isolation.APPARMOR, detail="d"),
        IsolationProbe("user", available=True),
    ]
    inventory = Inventory(
        devices=[], levels=["node", "device"], cpus=2, memory_bytes=1, isolation=probes
    )

    assert Inventory.from_json(json.loads(json.dumps(inventory.to_json()))) == inventory
    twice = {**inventory.to_json(), "isolation": [probes[1].to_json()] * 2}
    with pytest.raises(ProtocolError, match="at most once"):
        Inventory.from_json(twice)
    with pytest.raises(ProtocolError, match=r"isolation\.level"):
        IsolationProbe.from_json({"level": "vm", "available": True})


def test_levels_are_ordered_and_the_best_of_some_is_found() -> None:
    probes = [IsolationProbe(level, available=level != "user") for level in isolation.LEVELS]

    assert [isolation.at_least("namespace", least) for least in isolation.LEVELS] == [
        *(True, True),
        *(False, False),
    ]
    assert isolation.best_available(probes) == "container"
    assert isolation.best_available(probes, of=("none", "namespace", "user")) == "namespace"
    assert isolation.best_available([]) == "none"
    with pytest.raises(ValueError, match="not in tuple"):
        isolation.at_least("vm", "none")


def test_every_cause_has_a_remedy() -> None:
    assert all(isolation.remedy(cause).endswith(".") for cause in isolation.CAUSES)
    assert isolation.remedy("unheard-of") == ""


def test_a_status_with_its_exit_crosses_the_wire() -> None:
    record = ExitRecord(cause="oom", failure="resource-limit", at=5.0, signal=9, message="m")
    status = RunStatus(run_id=f"{ATTEMPT}.worker.0", phase=protocol.EXITED, exit=record)

    assert RunStatus.from_json(json.loads(json.dumps(status.to_json()))) == status


def test_an_inventory_crosses_the_wire_and_a_crooked_path_is_refused() -> None:
    levels = ["node", "socket", "pcie", "device"]
    inventory = Inventory(
        devices=[Device(index=0, type="cpu-a", path=[0, 0], declared=True)],
        levels=levels,
        cpus=2,
        memory_bytes=1,
    )

    assert Inventory.from_json(inventory.to_json()) == inventory
    crooked = {**inventory.to_json(), "devices": [{"index": 0, "type": "a", "path": [0]}]}
    with pytest.raises(ProtocolError, match=r"device\.path"):
        Inventory.from_json(crooked)


@pytest.mark.parametrize("line", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * (2 << 20)])
def test_a_bad_line_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        protocol.decode_line(line)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "x" * 200, "a\nb"])
def test_a_secret_whose_name_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        protocol.check_secrets({name: "hunter2"})

    assert "hunter2" not in str(refused.value)


def test_every_operation_and_phase_has_one_name() -> None:
    assert len(set(protocol.OPERATIONS)) == len(protocol.OPERATIONS) == 18
    assert len(set(protocol.PHASES)) == 5
    assert set(protocol.__all__) <= set(vars(protocol))
