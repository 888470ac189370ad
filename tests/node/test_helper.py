"""The helper does for its account what the docs say, and refuses the rest."""

import errno
import json
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import installed
import pytest
from session import ALICE, RUNNER, SUDO, make_spec, node, python_for_all, wait_until

from tessera import isolation
from tessera.bundle import build_bundle, build_helper
from tessera.isolation import OWN_NETWORK, SHARED_UID, USER
from tessera.job_networks import ISOLATED
from tessera.node import helped, helper, helper_requests, sizes
from tessera.node.accounts import Account
from tessera.node.helper import Helper
from tessera.node.helper_requests import RequestError, Rules, fields_of, plan_of
from tessera.node.sandbox_root import Bind, Plan

RULES = Rules(Account(RUNNER, RUNNER), 71_000, 79_999, ("/home/t/.tessera", "/shared"))
NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can install the helper")
PRELUDE = """
import json, os, socket, sys
sys.path.insert(0, sys.argv[1])
known = json.loads(sys.argv[2])
from tessera.node import confinement, helped, helper
from tessera.node.boxes import SandboxError
from tessera.node.helped import HelpedSandbox
from tessera.node.sandbox_root import Bind
ALICE = 71_001
helped.check()

def outcome(output=None, **changes):
    reader, writer = os.pipe()
    box = HelpedSandbox(confinement._trial(ALICE)._replace(**changes))
    try:
        box.start(writer if output is None else output)
    except SandboxError as error:
        return f"{error.stage} {error.number} {error}"
    finally:
        box.close()
        os.close(reader)
        os.close(writer)
    return "started"

def refusal(fields, opened=()):
    try:
        return helped._ask(fields, opened, 20)
    except OSError as error:
        return f"{error}"
"""


# -- requests ------------------------------------------------------------------------------------


def good_plan() -> Plan:
    return Plan(
        uid=ALICE,
        binds=[Bind("/home/t/.tessera/runs/1/work", "/tessera/work", True, True)],
        hidden=["/opt/tessera"],
        devices=["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12"],
        secrets=("/dev/shm/tessera-1/2", "/tessera/secrets"),
        owned=["/home/t/.tessera/runs/1/work", "/shared/local/7"],
        owners=[0, 1],
        group=0,
        tmp_bytes=1,
        shm_bytes=1,
        file_bytes=0,
        home="/tessera/home",
        directory="/tessera/work",
        arguments=["/bin/sh"],
        environment={"A": "b"},
    )


def asked(**changes: object) -> Plan:
    """The plan of a request as it arrives."""
    return plan_of(json.loads(json.dumps({**fields_of(good_plan()), **changes})), RULES)


def test_a_plan_is_carried_out_with_the_account_s_files_alone() -> None:
    plan = asked()

    assert plan == good_plan()._replace(
        owners=[RUNNER, SHARED_UID], group=RUNNER, account=RULES.account
    )
    assert asked(uid=SHARED_UID).uid == SHARED_UID
    others = ["/dev/kfd", "/dev/dri/renderD128", "/dev/davinci7", "/dev/davinci_manager"]
    assert asked(devices=others).devices == others


@pytest.mark.parametrize("uid", [0, 1, 1000, RUNNER, 70_998, 80_000, -1, True, "71001", None, 1.5])
def test_users_outside_of_the_range_are_refused(uid: object) -> None:
    with pytest.raises(RequestError, match="not from 71000 to 79999"):
        asked(uid=uid)


@pytest.mark.parametrize("uid", [71_001, SHARED_UID])
def test_the_id_of_an_account_of_the_node_is_refused(
    monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    root = pwd.getpwuid(0)
    monkeypatch.setattr("pwd.getpwuid", lambda _: root)

    with pytest.raises(RequestError, match="belongs to the account root"):
        asked(uid=uid)


@pytest.mark.parametrize(
    "target",
    [
        *("/", "/etc", "/etc/passwd", "/.old", "/.old/etc/cron.d/x", "/proc/sys", "/dev/null"),
        *("/run/x", "/usr", "/bin", "/lib64", "/tessera", "/tessera/secrets", "/tessera/work/x"),
        *("relative", "/a/../etc", "/a//b", "//a", "/a/", "/a/.", "/a\0b", "", "/" + "a" * 5000),
    ],
)
def test_targets_that_root_uses_itself_are_refused(target: str) -> None:
    with pytest.raises(RequestError):
        asked(binds=[["/srv", target, False, False]])


def test_the_places_that_the_resolver_s_links_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("etc", "var", "run/net", "lib"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lib" / "resolv.conf").touch()
    (tmp_path / "run" / "net" / "resolv.conf").symlink_to("../../lib/resolv.conf")
    (tmp_path / "var" / "run").symlink_to("../run")
    (tmp_path / "etc" / "resolv.conf").symlink_to("../var/run/net/resolv.conf")
    # The links of this machine's own resolver cannot be changed.
    monkeypatch.setattr(helper_requests, "_RESOLVER", str(tmp_path / "etc" / "resolv.conf"))

    for name in ("var", "var/run", "var/run/net/resolv.conf", "lib", "etc"):
        with pytest.raises(RequestError):
            asked(binds=[["/srv", str(tmp_path / name), False, False]])
    for name in ("var/data", "library", "srv"):
        assert asked(binds=[["/srv", str(tmp_path / name), False, False]])


@pytest.mark.parametrize(
    "path",
    [
        *("/etc", "/home/t", "/home/t/.tessera-2/x", "/home/t/.tessera/../x", "/sharedx"),
        *("/shared/../etc", "shared"),
    ],
)
def test_files_elsewhere_are_not_given_to_jobs(path: str) -> None:
    with pytest.raises(RequestError):
        asked(owned=[path])


@pytest.mark.parametrize(
    "changes",
    [
        {"devices": ["/dev/sda"]},
        {"devices": ["/dev/nvidia0/../sda"]},
        {"devices": ["/dev/nvidia-caps/nvidia-cap1/x"]},
        {"devices": ["/dev/dri/card0"]},
        {"devices": ["/dev/davinci"]},
        {"hidden": ["/a/.."]},
        {"binds": [["/srv", "/x", 1, False]]},
        {"binds": [["srv", "/x", True, False]]},
        {"binds": [["/srv", "/x", True]]},
        {"binds": [["/srv", "/x", True, True]] * 5000},
        {"secrets": ["/a", "/etc"]},
        {"secrets": "relative"},
        {"tmp_bytes": -1},
        {"tmp_bytes": True},
        {"tmp_bytes": "1,mode=4777"},
        {"file_bytes": 1 << 63},
        {"arguments": []},
        {"arguments": ["a\0b"]},
        {"environment": {"A=B": "c"}},
        {"environment": {"A": "\0"}},
        {"environment": {"": "a"}},
        {"resolver": "\u00e9"},
        {"resolver": "a" * 5000},
        {"directory": None},
        {"owners": [0]},
        {"group": 0},
        {"account": [0, 0]},
        {"own_network": True},
    ],
    ids=str,
)
def test_malformed_and_unknown_fields_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        asked(**changes)


def test_a_missing_field_is_refused() -> None:
    fields = fields_of(good_plan())
    for name in fields:
        with pytest.raises(RequestError):
            plan_of({other: fields[other] for other in fields if other != name}, RULES)


@NEEDS_ROOT
@pytest.mark.parametrize(
    "configuration",
    [
        {"uids": [0, 100]},
        {"uids": [999, 2000]},
        {"uids": [2000, 1999]},
        {"uids": [60_000, 70_000]},
        {"uids": [4_000, 5_000]},
        {"uids": [71_000]},
        {"uids": [71_000, 1 << 31]},
        {"directories": ["relative"]},
        {"directories": "/shared"},
        {"unknown": 1},
        [],
    ],
    ids=str,
)
def test_a_malformed_configuration_is_refused(configuration: object) -> None:
    with protected() as top:
        path = top / "helper.json"
        path.write_text(json.dumps(configuration))
        with pytest.raises(RequestError):
            helper_requests.read_rules(RULES.account, "/home/t", str(path))


@NEEDS_ROOT
def test_a_configuration_that_others_may_change_is_refused() -> None:
    with protected() as top:
        path = top / "helper.json"
        path.write_text('{"uids": [80000, 80999], "directories": ["/shared"]}')
        found = helper_requests.read_rules(RULES.account, "/home/t", str(path))
        path.chmod(0o664)
        with pytest.raises(RequestError, match="is writable by users other"):
            helper_requests.read_rules(RULES.account, "/home/t", str(path))

    assert found == Rules(RULES.account, 80_000, 80_999, ("/home/t/.tessera", "/shared"))


@contextmanager
def protected() -> Iterator[Path]:
    """A directory that only root can change, as one in /tmp is not."""
    top = Path(tempfile.mkdtemp(prefix="tessera-protected-", dir="/opt"))
    try:
        yield top
    finally:
        shutil.rmtree(top)


# -- the program ---------------------------------------------------------------------------------


def test_the_program_is_complete_and_has_nothing_else(tmp_path: Path) -> None:
    program = tmp_path / "helper.pyz"
    program.write_bytes(build_helper().data)
    names = zipfile.ZipFile(BytesIO(program.read_bytes())).namelist()

    done = subprocess.run(
        [sys.executable, "-I", "-S", program], capture_output=True, text=True, check=False
    )

    assert sorted(names) == sorted(["__main__.py", *helper.MODULES])
    assert done.returncode == 1
    assert done.stderr.startswith("tessera helper: ")
    assert "Traceback" not in done.stderr


@NEEDS_ROOT
@pytest.mark.parametrize("uid", ["0", str(RUNNER), ""])
def test_the_program_needs_a_socket_of_the_account_that_uses_sudo(uid: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with protected() as top, ours, theirs:
        program = top / "helper.pyz"
        program.write_bytes(build_helper().data)
        done = subprocess.run(
            [python_for_all(), "-I", "-S", program],
            stdin=theirs.fileno(),
            capture_output=True,
            env={"SUDO_UID": uid},
            text=True,
            check=False,
        )

    assert done.returncode == 1
    assert done.stderr == "tessera helper: was not started through sudo by its account\n"


def in_child(helper_work: Callable[[Helper, socket.socket], None]) -> Iterator[bytes]:
    """What a helper in a child sends over its socket until the child has ended."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            helper_work(object.__new__(Helper), theirs)
        finally:
            os._exit(1)
    theirs.close()
    with ours:
        yield from iter(lambda: ours.recv(1000), b"")
    os.waitpid(pid, 0)


def test_an_alarm_that_the_account_has_switched_off_is_on_again() -> None:
    def work(helper: Helper, line: socket.socket) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})

        def answer(one: socket.socket) -> None:
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, set())
            one.sendall(f"{signal.getsignal(signal.SIGALRM) == signal.SIG_DFL} {mask}".encode())

        helper._answer = answer  # type: ignore[assignment, method-assign]  # this helper alone
        other, _ = socket.socketpair()
        helper._handle(other, os.dup(line.fileno()))

    assert b"".join(in_child(work)) == b"True set()"


def test_a_measurement_that_takes_too_long_counts_as_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def size_of(_: object, __: int) -> int:
        while True:
            time.sleep(1)

    # A tree that takes longer than any machine's timer would be too large to create.
    monkeypatch.setattr(sizes, "size_of", size_of)

    def work(one: Helper, line: socket.socket) -> None:
        one._become_user_of = lambda *_: signal.setitimer(  # type: ignore[method-assign,assignment]
            signal.ITIMER_REAL, 0.05
        )
        one._size(line, {"enough": 7}, [])

    assert json.loads(b"".join(in_child(work))) == {"size": 8}


def test_a_helper_that_cannot_fork_serves_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class EndedError(Exception):
        pass

    def end(_: int) -> None:
        raise EndedError

    tried = []

    def fork() -> int:
        tried.append(1)
        if len(tried) == 1:
            raise OSError(errno.EAGAIN, "no process is left")
        return 1

    monkeypatch.setattr("os._exit", end)
    monkeypatch.setattr("os.fork", fork)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asking = [socket.socketpair() for _ in range(2)]
    for _, end_of_helper in asking:
        helper.send_descriptors(ours, b"!", [end_of_helper.fileno()])
        end_of_helper.close()
    ours.close()

    with theirs, pytest.raises(EndedError):
        object.__new__(Helper).serve(theirs)

    assert len(tried) == 2
    for one, _ in asking:
        with one:
            assert one.recv(1) == b""


@NEEDS_ROOT
def test_a_runner_that_is_root_asks_no_helper_for_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(tmp_path, ALICE, ALICE)

    assert not helped.is_of_job(str(tmp_path))
    monkeypatch.setattr("os.getuid", lambda: RUNNER)
    assert helped.is_of_job(str(tmp_path))


# -- through sudo --------------------------------------------------------------------------------


class Node:
    """An account with the helper and its rule."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="tessera-helper-"))
        self.home.chmod(0o755)
        self.root = self.home / ".tessera"
        self.bundle = self.home / "node.pyz"
        self.bundle.write_bytes(build_bundle().data)
        self.bundle.chmod(0o644)
        self.mine(self.root)

    def mine(self, path: Path) -> Path:
        """A directory of the account."""
        path.mkdir()
        os.chown(path, RUNNER, RUNNER)
        return path

    def run(self, script: str, known: object = None, **options: Any) -> Any:
        """What a program of the account prints, as JSON."""
        shutil.rmtree(self.home / "installed", ignore_errors=True)
        command = [
            *installed.prefix(self.home, RUNNER, **options),
            *("setpriv", f"--reuid={RUNNER}", f"--regid={RUNNER}", "--clear-groups"),
            *(python_for_all(), "-I", "-S", "-c", script, str(self.bundle), json.dumps(known)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def account() -> Iterator[Node]:
    found = Node()
    yield found
    shutil.rmtree(found.home)


PROBE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from tessera.node import confinement
found = confinement._tried("user")
print(json.dumps([found.available, found.cause, found.detail]))
"""


@NEEDS_ROOT
def test_the_probe_tries_the_helper(account: Node) -> None:
    assert account.run(PROBE) == [True, "", "by /usr/local/lib/tessera/helper.pyz"]


@NEEDS_ROOT
@pytest.mark.parametrize(
    ("options", "cause", "detail"),
    [
        ({"rule": ""}, isolation.NO_ROOT, "sudo: "),
        ({"rule": f"{installed.ACCOUNT} ALL=(root) NOPASSWD: /bin/true\n"}, isolation.NO_ROOT, ""),
        ({"program": b""}, isolation.NO_ROOT, ""),
        ({"configuration": {"uids": [0, 1]}}, isolation.HELPER_FAILED, "uids must be"),
        ({"mode": 0o775}, isolation.HELPER_UNSAFE, "helper.pyz is writable"),
        ({"owner": RUNNER}, isolation.HELPER_UNSAFE, "helper.pyz is writable"),
    ],
    ids=["no-rule", "another-rule", "empty", "configuration", "mode", "owner"],
)
def test_the_probe_names_the_cause_and_the_remedy(
    account: Node, options: dict[str, Any], cause: str, detail: str
) -> None:
    is_available, found, said = account.run(PROBE, **options)

    assert (is_available, found) == (False, cause)
    assert detail in said
    assert isolation.remedy(found)


@NEEDS_ROOT
def test_a_helper_of_another_version_is_found_and_not_used(account: Node) -> None:
    with zipfile.ZipFile(BytesIO(build_helper().data)) as source:
        target = BytesIO()
        with zipfile.ZipFile(target, "w") as archive:
            for name in source.namelist():
                archive.writestr(name, source.read(name) + b"\n# another version\n")
        other = target.getvalue()
    script = PRELUDE.replace("helped.check()", "") + "print(json.dumps(outcome()))"

    found = account.run(PROBE, program=other)
    used = account.run(script, program=other)

    assert found[:2] == [False, isolation.HELPER_DIFFERS]
    assert used == "check 0 the version of the helper differs from that of the node program"


@NEEDS_ROOT
def test_only_what_the_account_reaches_is_shown(account: Node) -> None:
    private = account.home / "private"
    private.mkdir(mode=0o700)
    (private / "file").write_text("of root")
    (private / "file").chmod(0o644)
    script = """
print(json.dumps([
    outcome(binds=[Bind(known, "/x")]),
    outcome(binds=[Bind(known + "/file", "/x")]),
    outcome(secrets=(known, "/tessera/secrets")),
    outcome(secrets=("/root", "/tessera/secrets")),
]))
"""
    found = account.run(PRELUDE + script, str(private))

    # The directory itself may be named, as everybody may; its permissions go with it.
    assert found[0] == "started"
    assert [text.split()[:2] for text in found[1:]] == [["mount", "13"]] * 3


@NEEDS_ROOT
def test_root_makes_nothing_outside_of_the_sandbox(account: Node) -> None:
    outer = account.mine(account.home / "outer")
    roots = account.home / "of-root"
    roots.mkdir(mode=0o755)
    links = {"old": "/.old", "etc": "/etc", "passwd": "/etc/passwd", "up": "../of-root"}
    for name, target in links.items():
        (outer / name).symlink_to(target)
    script = """
def at(target, source):
    return outcome(binds=[Bind(source, "/w", True), Bind("/usr/bin/true", target)])
outer, roots = known
print(json.dumps([
    at("/w/new", roots), at("/w/inner/new", roots),
    at("/w/old" + roots + "/new", outer), at("/w/etc/new", outer), at("/w/up/new", outer),
    at("/w/etc", outer), at("/w/passwd", outer), at("/w/new", outer), at("/usr/new", outer),
    outcome(binds=[Bind(outer, "/w", True), Bind(roots, "/w/etc")]),
]))
"""
    found = account.run(PRELUDE + script, [str(outer), str(roots)])

    assert {text.split()[0] for text in found} == {"mount"}, found
    assert list(roots.iterdir()) == []
    assert sorted(path.name for path in outer.iterdir()) == sorted(links)
    assert not Path("/etc/new").exists()


@NEEDS_ROOT
def test_only_files_of_the_account_are_given_away(account: Node) -> None:
    owned = account.mine(account.root / "owned")
    for name, uid in {"mine": RUNNER, "of-root": 0, "of-another": 1, "of-bob": 71_002}.items():
        (owned / name).write_text(name)
        os.chown(owned / name, uid, uid)
        (owned / name).chmod(0o600)
    victim = account.home / "victim"
    victim.write_text("with two names")
    os.chown(victim, RUNNER, RUNNER)
    os.link(victim, owned / "second-name")
    (owned / "link").symlink_to("/etc/shadow")
    shadow = Path("/etc/shadow").stat()

    found = account.run(
        PRELUDE + "print(json.dumps(outcome(owned=[known])))", str(owned.resolve())
    )

    owners = {path.name: path.lstat().st_uid for path in owned.iterdir() if path.name != "link"}
    expected = {"mine": ALICE, "of-root": 0, "of-another": 1, "of-bob": 71_002}
    assert found == "started"
    assert owners == {**expected, "second-name": RUNNER}
    assert Path("/etc/shadow").stat()[:6] == shadow[:6]


@NEEDS_ROOT
def test_requests_that_are_not_of_the_protocol_are_refused(account: Node) -> None:
    pipe = account.home / "pipe"
    if not pipe.exists():
        os.mkfifo(pipe)
        pipe.chmod(0o666)
    script = """
null = os.open("/dev/null", os.O_WRONLY)
foreign = os.open(known, os.O_RDWR)
space = os.open("/proc/self/ns/mnt", os.O_RDONLY)
reader, writer = os.pipe()
plan = helped.helper_requests.fields_of(confinement._trial(ALICE))
run = {"verb": "run", "plan": plan}
ours, theirs = helped._connected()
theirs.close()
ours.sendall(b"\\xff\\xff\\xff\\x7f")
large = ours.recv(1000).decode()
odd, _ = helped._connected()
odd.close()
print(json.dumps([
    large,
    outcome(output=null),
    outcome(output=foreign),
    refusal({"verb": "shell"}),
    refusal(run, []),
    refusal(run, [writer, space]),
    refusal({**run, "plan": {**plan, "uid": 0}}, [writer]),
    refusal({"verb": "size", "uid": 0, "enough": 1}),
    refusal({"verb": "remove", "uid": 1000, "seconds": 1}),
    refusal({"verb": "remove", "uid": ALICE, "seconds": 1e9}),
    outcome(),
]))
"""
    found = account.run(PRELUDE + script, str(pipe))

    assert [text for text in found if "failed" not in text and "check 0" not in text] == [
        "started"
    ]
    assert "at most" in found[0]
    assert "pipe of the account" in found[1] + found[2]
    assert "Inappropriate ioctl" in found[5] or "network namespace" in found[5]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert pipe.stat().st_uid == 0


@NEEDS_ROOT
def test_a_job_enters_only_a_network_that_the_account_has_made(account: Node) -> None:
    script = """
reader, writer = os.pipe()
plan = helped.helper_requests.fields_of(confinement._trial(ALICE))
run = {"verb": "run", "plan": plan}
shared = os.open("/proc/self/ns/net", os.O_RDONLY)
print(json.dumps([
    refusal(run, [writer, os.pidfd_open(1)]),
    refusal(run, [writer, os.pidfd_open(os.getpid())]),
    refusal(run, [writer, shared]),
    refusal(run, [writer, reader]),
    outcome(own_network=True),
]))
"""
    found = account.run(PRELUDE + script)

    assert [text.split(" check ")[0] for text in found[:4]] == ["the helper: failed"] * 4, found
    assert "Operation not permitted: 'network namespace'" in found[2]
    assert found[4] == "started"


@NEEDS_ROOT
def test_directories_are_removed_and_measured_with_the_job_s_rights_alone(account: Node) -> None:
    theirs, roots = account.home / "theirs", account.home / "roots"
    for path, uid in ((theirs, ALICE), (roots, 0)):
        path.mkdir(mode=0o755)
        (path / "file").write_bytes(bytes(1 << 20))
        for one in (path, path / "file"):
            os.chown(one, uid, uid)
            one.chmod(0o700)
    script = """
theirs, roots = known
flags = os.O_PATH | os.O_DIRECTORY
opened = [os.open(path, flags) for path in (theirs, roots)]
size = {"verb": "size", "uid": ALICE, "enough": 1 << 40}
remove = {"verb": "remove", "uid": ALICE, "seconds": 5}
print(json.dumps([
    refusal(size, opened[:1]), refusal(size, opened[1:]),
    refusal(remove, opened[:1]), refusal(remove, opened[1:]),
]))
"""
    found = account.run(PRELUDE + script, [str(theirs), str(roots)])

    assert found[0]["size"] >= 1 << 20
    assert "failed check" in found[1]
    assert found[2] == {"is_done": True}
    assert "failed check" in found[3]
    assert list(theirs.iterdir()) == []
    assert [path.name for path in roots.iterdir()] == ["file"]
    assert stat.S_IMODE(roots.stat().st_mode) == 0o700


@NEEDS_ROOT
def test_a_job_of_the_helper_has_its_own_network_and_publishes_ports() -> None:
    port = 15_417
    serve = f"""exec python3 -u -c '
import socket
server = socket.create_server(("0.0.0.0", {port}))
print(sorted(name for _, name in socket.if_nameindex()), flush=True)
one, _ = server.accept()
one.sendall(b"from the job")
'"""
    spec = make_spec(
        serve,
        isolation=USER,
        uid=ALICE,
        network=OWN_NETWORK,
        job_network=ISOLATED,
        ports=[port],
    )
    with node(USER, SUDO) as session:
        status = session.start(spec)
        wait_until(lambda: session.log(spec), "the job listens")
        with socket.create_connection(("127.0.0.1", port)) as one:
            received = one.makefile("rb").read()
        end = session.exit_of(spec)
        log = session.log(spec)

    assert (status.isolation, status.network) == (USER, OWN_NETWORK)
    assert received == b"from the job"
    assert end.exit is not None
    assert end.exit.code == 0
    assert log in ("['lo']\n", "['lo', 'tap0']\n")
