"""Making the environment from the locks; the locks here are empty, so that nothing is fetched."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import PROJECT_ROOT

Started = subprocess.CompletedProcess[str]
Env = Callable[..., Started]
SHOW = ("python", "-c", "import sys; print(sys.prefix, sys.path)")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a blank in its path, whose locks want nothing."""
    root = tmp_path_factory.mktemp("a checkout")
    shutil.copytree(PROJECT_ROOT / "tools", root / "tools")
    shutil.copy(PROJECT_ROOT / "tessera", root)
    (root / "src").mkdir()
    (root / "requirements").mkdir()
    for name in ("bootstrap.txt", "server.txt", "dev.txt"):
        (root / "requirements" / name).write_text("# nothing\n")
    return root


def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PIP_NO_INDEX": "1"}


def env(checkout: Path, *words: str) -> Started:
    return subprocess.run(
        [checkout / "tools" / "env", *words],
        capture_output=True, text=True, check=False, env=environment(), cwd="/", timeout=100,
    )  # fmt: skip


def test_of_two_first_starts_at_once_one_makes_the_environment(checkout: Path) -> None:
    starts = [
        subprocess.Popen(
            [checkout / "tools" / "env", "server", "--", *SHOW],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
        )
        for _ in range(2)
    ]  # fmt: skip

    said = [start.communicate(timeout=100) for start in starts]

    assert [start.returncode for start in starts] == [0, 0], said
    assert sum("making the environment" in err for _, err in said) == 1
    for out, _ in said:
        assert all(f"{checkout}{place}" in out for place in ("/.venv", "/src'", "'"))


def test_a_changed_lock_installs_again_and_an_unchanged_one_does_not(checkout: Path) -> None:
    env(checkout, "server", "--", *SHOW)
    (checkout / "requirements" / "server.txt").write_text("# still nothing\n")

    changed = env(checkout, "server", "--", *SHOW)
    unchanged = env(checkout, "server", "--", *SHOW)

    assert "up to the lock" in changed.stderr
    assert unchanged.stderr == ""


def test_an_environment_for_developers_serves_the_server_too(checkout: Path) -> None:
    assert env(checkout, "dev", "--", *SHOW).returncode == 0

    assert env(checkout, "server", "--", *SHOW).stderr == ""


@pytest.mark.soak
def test_a_broken_environment_is_made_anew(checkout: Path) -> None:
    env(checkout, "server", "--", *SHOW)
    for python in (checkout / ".venv" / "bin").glob("python*"):
        python.unlink()

    mended = env(checkout, "server", "--", *SHOW)

    assert mended.returncode == 0
    assert "making the environment" in mended.stderr


def test_a_lock_that_cannot_be_installed_fails_with_a_remedy_and_is_not_taken_for_done(
    checkout: Path,
) -> None:
    lock = checkout / "requirements" / "server.txt"
    before = lock.read_text()
    lock.write_text(f"no-such-package-{'x' * 8}==1 --hash=sha256:{'0' * 64}\n")

    first = env(checkout, "server", "--", *SHOW)
    second = env(checkout, "server", "--", *SHOW)
    lock.write_text(before)

    assert first.returncode == second.returncode == 69
    assert "could not be installed" in second.stderr


def uv_environment(checkout: Path, **given: str) -> dict[str, str]:
    """What uv is started with, where pip and the user's environment are set up as ``given``."""
    env(checkout, "server", "--", *SHOW)
    show = "import json, bootstrap; print(json.dumps(bootstrap._uv_environment()))"
    ran = subprocess.run(
        [sys.executable, "-c", show], cwd=checkout / "tools", env={**environment(), **given},
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    found: dict[str, str] = json.loads(ran.stdout)
    return found


def test_uv_compiles_once_and_trusts_what_the_system_trusts(checkout: Path) -> None:
    found = uv_environment(checkout)

    assert (found["UV_COMPILE_BYTECODE"], found["UV_SYSTEM_CERTS"]) == ("1", "1")


def test_uv_gets_the_index_and_the_certificates_of_pip(checkout: Path, tmp_path: Path) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(
        "[global]\nindex-url = https://all.example/simple\ncert = /etc/it's.pem\n"
        "[install]\nindex-url = https://install.example/simple\n"
    )

    of_file = uv_environment(checkout, PIP_CONFIG_FILE=str(settings))
    of_variables = uv_environment(
        checkout, PIP_CONFIG_FILE=str(settings), PIP_INDEX_URL="https://env.example/simple"
    )

    assert of_file["UV_DEFAULT_INDEX"] == "https://install.example/simple"
    assert of_file["SSL_CERT_FILE"] == "/etc/it's.pem"
    assert of_variables["UV_DEFAULT_INDEX"] == "https://env.example/simple"


def test_what_is_set_for_uv_itself_wins(checkout: Path) -> None:
    own = {
        "UV_COMPILE_BYTECODE": "0",
        "UV_SYSTEM_CERTS": "0",
        "UV_DEFAULT_INDEX": "https://own.example/simple",
        "SSL_CERT_FILE": "/etc/own.pem",
    }
    of_pip = {"PIP_INDEX_URL": "https://pip.example/simple", "PIP_CERT": "/etc/pip.pem"}

    found = uv_environment(checkout, **own, **of_pip)

    assert {name: found[name] for name in own} == own


def test_the_status_and_arguments_of_the_program_are_passed_on(checkout: Path) -> None:
    code = "import sys; print(sys.argv[1:]); sys.exit(7)"

    ran = env(checkout, "server", "--", "python", "-c", code, "a b", "$HOME")

    assert (ran.returncode, ran.stdout) == (7, "['a b', '$HOME']\n")


@pytest.mark.parametrize(
    "words", [(), ("server",), ("other", "--", "python"), ("server", "python")]
)
def test_wrong_use_is_reported(checkout: Path, words: tuple[str, ...]) -> None:
    ran = env(checkout, *words)

    assert ran.returncode == 64
    assert "usage" in ran.stderr


def test_without_a_python_the_start_reports_what_is_missing(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    shutil.copytree(PROJECT_ROOT / "tools", tools)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "dirname").symlink_to(shutil.which("dirname") or "/usr/bin/dirname")

    ran = subprocess.run(
        ["/bin/sh", tools / "env", "server", "--", "python"],
        capture_output=True, text=True, check=False, env={"PATH": str(programs)},
    )  # fmt: skip

    assert ran.returncode == 69
    assert "no Python 3.11 or newer" in ran.stderr
