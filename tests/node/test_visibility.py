"""What stays hidden from jobs wherever it lies, and which directories checkpoints may lie in."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from session import ALICE, PLACES, Session, declare_isolation, make_spec, node

from tessera import protocol
from tessera.isolation import NONE, USER, ContainerView, VisiblePath
from tessera.node import visibility
from tessera.node.runs import Store
from tessera.protocol import ContainerRef, ProtocolError, RunSpec


@pytest.fixture(scope="module", params=PLACES, ids="-".join)
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, Session]]:
    """A node whose account has its home in a directory of the system."""
    level, account = request.param
    with node(level, account, below="/opt") as session:
        yield level, session


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A directory of everybody that no home contains."""
    path = Path(tempfile.mkdtemp(prefix="tessera-elsewhere-", dir="/opt"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def seen(place: tuple[str, Session], command: str, **changes: object) -> str:
    """The output of a job."""
    level, session = place
    uid = ALICE if level == USER else None
    status, log = session.run(command, isolation=level, uid=uid, **changes)
    assert status.isolation == level
    return log


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o644)


def test_a_home_in_a_directory_of_the_system_is_empty_but_for_what_is_declared(
    place: tuple[str, Session],
) -> None:
    home = place[1].home
    put(home / "notes", "of-the-account")
    put(home / "venv" / "file", "of-the-environment")

    log = seen(
        place,
        f"cat {home}/venv/file; ls -A {home}; cat {home}/notes; touch {home}/new {home}/venv/new",
        visible_paths=[VisiblePath(str(home / "venv"))],
    )

    assert log.startswith("of-the-environmentvenv\n")
    assert "of-the-account" not in log
    assert log.count("Read-only file system") == 2


def test_a_declared_home_is_seen_without_the_directory_of_the_runner(
    place: tuple[str, Session],
) -> None:
    home = place[1].home
    put(home / "notes", "of-the-account")

    log = seen(
        place,
        f"cat {home}/notes; ls -A {home}/.tessera; touch {home}/{place[0]}",
        visible_paths=[VisiblePath(str(home), writable=True)],
    )

    assert log.startswith("of-the-account")
    assert "runs" not in log
    assert "Read-only" not in log


def test_declared_directories_stay_hidden(place: tuple[str, Session], elsewhere: Path) -> None:
    level, session = place
    put(elsewhere / "portal" / "secret_key", "key-of-the-portal")
    declare_isolation(session.home, strongest=level, hidden_paths=[str(elsewhere / "portal")])

    log = seen(place, f"cat {elsewhere}/portal/secret_key; ls {elsewhere}")

    assert "key-of-the-portal" not in log
    assert log.endswith("portal\n")


def test_a_job_sees_its_own_checkpoints_and_no_others(
    place: tuple[str, Session], elsewhere: Path
) -> None:
    _, session = place
    top = elsewhere / "saved"
    put(top / "local" / "41" / "weights", "of-another-job")
    for path in (elsewhere, top, top / "local"):
        path.chmod(0o777)
    shared = [VisiblePath(str(elsewhere)), VisiblePath(str(top), checkpoints=True)]
    declare_isolation(session.home, strongest=place[0])

    log = seen(
        place,
        f'echo mine > "$TESSERA_JOB_CHECKPOINT_DIR/weights"; find {top}; cat {top}/local/41/*',
        job_id="42",
        checkpoint_dir=str(top),
        visible_paths=shared,
    )

    assert log.startswith(f"{top}\ncat: ")
    assert "of-another-job" not in log
    assert (top / "local" / "42" / "weights").read_text() == "mine\n"


@pytest.mark.parametrize(
    "shared",
    [
        [],
        [VisiblePath("/opt/data", writable=True)],
        [VisiblePath("/opt/saved", checkpoints=True)],
    ],
    ids=["nothing", "writable", "above"],
)
def test_a_directory_for_checkpoints_has_to_be_declared(
    place: tuple[str, Session], shared: list[VisiblePath]
) -> None:
    level, session = place
    spec = make_spec(isolation=level, checkpoint_dir="/opt/saved/x", visible_paths=shared)
    spec = replace(spec, uid=ALICE if level == USER else None)

    with pytest.raises(ProtocolError) as refused:
        session.prepare(spec)

    assert (refused.value.code, refused.value.failure) == ("bad-checkpoint-dir", "user")
    remedy = "use /opt/saved" if shared and shared[0].checkpoints else "/opt/saved/x:checkpoints"
    assert remedy in refused.value.message
    assert "Omit it" in refused.value.message
    assert not Path("/opt/saved").exists()


def test_it_has_to_be_declared_without_isolation_too(home: Path) -> None:
    declare_isolation(home, strongest=NONE)
    session = Session(home)

    with pytest.raises(ProtocolError, match="checkpoint_dir"):
        session.prepare(make_spec(checkpoint_dir=str(home / "saved")))

    allowed = [{"path": str(home / "saved"), "checkpoints": True}]
    declare_isolation(home, strongest=NONE, visible_paths=allowed)
    spec = make_spec(
        'mkdir -p "$TESSERA_JOB_CHECKPOINT_DIR"; pwd', checkpoint_dir=str(home / "saved")
    )
    session.start(spec)
    assert session.exit_of(spec).exit
    assert (home / "saved").is_dir()
    session.close()


# -- containers ----------------------------------------------------------------------------------


@pytest.fixture
def view_of(tmp_path: Path) -> Callable[..., ContainerView]:
    """The view of a container on a node with its home at ``tmp_path/srv/home``."""
    store = Store(str(tmp_path / "srv" / "home" / protocol.ROOT_DIR))
    store.create()
    (tmp_path / "link").symlink_to(tmp_path / "srv")
    (tmp_path / "to-runs").symlink_to(store.runs)

    def ask(*names: str, **changes: object) -> ContainerView:
        paths = [VisiblePath(str(tmp_path / name)) for name in names]
        spec: RunSpec = make_spec(visible_paths=paths, **changes)
        spec = replace(spec, container=ContainerRef(spec.run_id, "/run/docker.sock"))
        return visibility.of_container(store.run(spec.run_id), spec)

    return ask


def covered(view: ContainerView) -> list[str]:
    """The places of the covers, which hold nothing but the places of binds."""
    covers = [bind for bind in view.binds if f"/{visibility.COVERS_DIR}/" in bind[0]]
    for source, _, writable in covers:
        assert not writable
        assert not [path for path in Path(source).rglob("*") if path.is_file()]
    return [target for _, target, _ in covers]


def test_a_cover_has_the_places_of_the_binds_in_it(
    view_of: Callable[..., ContainerView], tmp_path: Path
) -> None:
    for name in ("venv/bin", "notes"):
        (tmp_path / "srv" / "home" / name).mkdir(parents=True)

    view = view_of("srv", "srv/home/venv/bin")

    assert covered(view) == [str(tmp_path / "srv/home")]
    (cover,) = (source for source, target, _ in view.binds if target.endswith("srv/home"))
    found = {str(path.relative_to(cover)) for path in Path(cover).rglob("*")}
    assert found == {"venv", "venv/bin"}


def test_the_home_is_covered_where_a_container_would_see_it(
    view_of: Callable[..., ContainerView], tmp_path: Path
) -> None:
    view = view_of("srv", "link")

    assert covered(view) == [str(tmp_path / "link/home"), str(tmp_path / "srv/home")]
    assert (str(tmp_path / "srv"), str(tmp_path / "link"), False) in view.binds


def test_a_home_that_is_declared_hides_the_directory_of_the_runner(
    view_of: Callable[..., ContainerView], tmp_path: Path
) -> None:
    view = view_of("srv/home")

    assert covered(view) == [str(tmp_path / "srv/home" / protocol.ROOT_DIR)]
    assert ContainerView.from_json(json.loads(json.dumps(view.to_json()))) == view


@pytest.mark.parametrize("name", ["to-runs", "srv/home/.tessera", "link/home/.tessera/runs"])
def test_a_path_in_the_directory_of_the_runner_is_refused_also_by_a_link(
    view_of: Callable[..., ContainerView], name: str
) -> None:
    with pytest.raises(ProtocolError, match="is in the runner's directory") as refused:
        view_of(name)

    assert (refused.value.code, refused.value.failure) == ("bad-visible-path", "node")


def test_directories_for_checkpoints_are_hidden_from_containers(
    view_of: Callable[..., ContainerView], tmp_path: Path
) -> None:
    saved = tmp_path / "data" / "saved"
    saved.mkdir(parents=True)

    view = view_of("data", "data/saved", hidden_paths=[str(saved)])

    assert covered(view) == [str(saved)]
    assert [target for _, target, _ in view.binds] == [str(tmp_path / "data"), str(saved)]


def test_a_link_that_a_job_has_put_in_place_of_a_visible_path_leads_nowhere(
    tmp_path: Path,
) -> None:
    scratch, secret = tmp_path / "scratch", tmp_path / "secret"
    for path in (scratch / "real", secret):
        path.mkdir(parents=True)
    (scratch / "sets").symlink_to(secret)
    shown = [
        VisiblePath(str(scratch), writable=True),
        VisiblePath(str(scratch / "real")),
        VisiblePath(str(scratch / "sets")),
    ]

    view = visibility.view_of(
        str(tmp_path / "node"), make_spec(visible_paths=shown), with_system=False
    )

    assert [bind.target for bind in view.binds] == [str(scratch), str(scratch / "real")]
    assert view.warnings == ["visible-path-missing"]


def test_nothing_is_made_through_a_link_in_place_of_the_checkpoints(
    view_of: Callable[..., ContainerView], tmp_path: Path
) -> None:
    (tmp_path / "victim").mkdir()
    top = tmp_path / "srv" / "home" / protocol.ROOT_DIR / protocol.CHECKPOINTS_DIR
    top.mkdir()
    (top / "local").symlink_to(tmp_path / "victim")

    with pytest.raises(ProtocolError, match="its path contains a link"):
        view_of()

    assert not list((tmp_path / "victim").iterdir())


def test_the_home_of_the_account_counts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = type("Entry", (), {"pw_dir": "/srv/account"})()
    monkeypatch.setattr("pwd.getpwuid", lambda uid: entry)
    visibility.homes.cache_clear()

    try:
        assert visibility.homes("/data/node/.tessera") == ("/data/node", "/srv/account")
    finally:
        visibility.homes.cache_clear()


def test_the_secrets_of_other_runs_are_covered_where_the_container_sees_shared_memory(
    view_of: Callable[..., ContainerView],
) -> None:
    place = f"/dev/shm/tessera-{os.geteuid()}"

    assert covered(view_of()) == []
    assert covered(view_of(host_ipc=True)) == [place]
