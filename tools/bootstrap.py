"""Creates the environment ``.venv`` from the locks if missing or stale, then runs a program.

Standard library only: this runs before anything is installed. Started by ``tools/env``.

    bootstrap.py PROFILE -- PROGRAM [ARGUMENT ...]

``PROFILE`` is ``server`` (what ``./tessera`` needs) or ``dev`` (tests and tools too). A stamp file
in the environment has the hash of the installed locks, so that an unchanged lock costs nothing.
"""

import ast
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = VENV / ".tessera.lock"  # uv takes `.lock` for itself
LOCKS = {"server": ("server.txt",), "dev": ("server.txt", "dev.txt")}
SCHEME = "1"  # raise it to reinstall every environment
EX_USAGE, EX_UNAVAILABLE = 64, 69


class BootstrapError(Exception):
    """The environment could not be created; the message has cause and remedy."""


def main(arguments: Sequence[str]) -> int:
    """Prepare the environment and replace this process by the program.

    Args:
        arguments: ``PROFILE -- PROGRAM [ARGUMENT ...]``.

    Returns:
        An exit status, only if the program could not be started.
    """
    if len(arguments) < 3 or arguments[0] not in LOCKS or arguments[1] != "--":
        _say(f"usage: tools/env {{{'|'.join(LOCKS)}}} -- PROGRAM [ARGUMENT ...]")
        return EX_USAGE
    profile, program = arguments[0], VENV / "bin" / arguments[2]
    try:
        if not _is_ready(profile):
            with _only_one():
                if not _is_ready(profile):
                    _make(profile)
        os.execv(program, [str(program), *arguments[3:]])  # noqa: S606 - no shell is wanted
    except BootstrapError as error:
        _say(str(error))
    except OSError as error:
        _say(f"cannot start {program}: {error.strerror}. Remove .venv and start again.")
    return EX_UNAVAILABLE


def _is_ready(profile: str) -> bool:
    try:
        return _stamp(profile).read_text() == _wanted(profile) and PYTHON.exists()
    except OSError:
        return False


def _stamp(profile: str) -> Path:
    return VENV / f".installed-{profile}"


def _wanted(profile: str) -> str:
    """The hash of all inputs of the installation: locks, path, interpreter."""
    parts = [SCHEME, str(ROOT), os.path.realpath(PYTHON)]
    digest = hashlib.sha256("\0".join(parts).encode())
    for name in LOCKS[profile]:
        digest.update((ROOT / "requirements" / name).read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _only_one() -> Iterator[None]:
    """Hold the lock of the environment, so that two concurrent starts install once."""
    VENV.mkdir(exist_ok=True)
    with (LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another start that is making .venv ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(profile: str) -> None:
    if not _runs(PYTHON):
        _say("making the environment .venv (once; about a minute) ...")
        _empty(VENV)
        _run([sys.executable, "-m", "venv", str(VENV)], "the environment could not be made")
    else:
        _say("bringing the environment .venv up to the lock ...")
    _install([ROOT / "requirements" / name for name in LOCKS[profile]])
    _put_sources_on_path()
    for done in LOCKS if profile == "dev" else (profile,):
        partial = _stamp(done).with_suffix(".new")
        partial.write_text(_wanted(done))
        partial.replace(_stamp(done))


def _runs(python: Path) -> bool:
    command = [str(python), "-I", "-c", "import pip"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _empty(folder: Path) -> None:
    """Remove a broken or partial environment, except its lock."""
    for entry in folder.iterdir():
        if entry == LOCK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _install(locks: Sequence[Path]) -> None:
    """Install the locks, every file checked by its hash: by uv, or by pip if uv fails."""
    wanted = ["--require-hashes", *(part for lock in locks for part in ("-r", str(lock)))]
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    uv = VENV / "bin" / "uv"
    first = [*pip, "install", "--require-hashes", "-r", str(ROOT / "requirements/bootstrap.txt")]
    if subprocess.run(first, check=False).returncode == 0 and uv.exists():
        fast = [str(uv), "pip", "install", "--quiet", "--python", str(PYTHON), *wanted]
        if subprocess.run(fast, check=False, env=_uv_environment()).returncode == 0:
            return
    _say("uv could not install the lock (see above); trying pip, which takes longer ...")
    _run([*pip, "install", *wanted], "the packages could not be installed")


def _uv_environment() -> dict[str, str]:
    """The environment for uv, with the package index and certificates from pip's settings.

    Like pip, uv then uses the system's certificates, and compiles installed files once: else all
    processes of a first start would do that at the same time.
    """
    environment = {"UV_COMPILE_BYTECODE": "1", "UV_SYSTEM_CERTS": "1", **os.environ}
    found = _pip_settings()
    for option, variable in (("index-url", "UV_DEFAULT_INDEX"), ("cert", "SSL_CERT_FILE")):
        for section in (":env:", "install", "global"):  # as pip ranks them
            if found.get(f"{section}.{option}"):
                environment.setdefault(variable, found[f"{section}.{option}"])
                break
    return environment


def _pip_settings() -> dict[str, str]:
    """Settings of pip by section and option, from variables and files; ``get`` reads only one."""
    command = [str(PYTHON), "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    settings = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        with contextlib.suppress(ValueError, SyntaxError):
            settings[name] = str(ast.literal_eval(value)).strip()
    return settings


def _put_sources_on_path() -> None:
    """Let the environment's Python import the rooms and ``tessera`` from this checkout."""
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    command = [str(PYTHON), "-I", "-c", where]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    Path(found.stdout.strip(), "tessera-checkout.pth").write_text(f"{ROOT / 'src'}\n{ROOT}\n")


def _run(command: Sequence[str], failure: str) -> None:
    if subprocess.run(command, check=False).returncode != 0:
        raise BootstrapError(
            f"{failure}: see the messages above. Needed are a package index that pip can reach "
            "and some 600 MB of free disk. Nothing half-made is used: mend it and start again."
        )


def _say(message: str) -> None:
    print(f"tessera: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
