"""What travels to nodes is plain Python 3.8, needs no server package, is the same every time."""

import ast
import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from session import SOURCES

from tessera.bundle import build_bundle


def travelling_files() -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(build_bundle().data)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def test_the_bundle_holds_node_train_and_protocol_and_nothing_of_the_server() -> None:
    names = {name for name, _ in travelling_files()}

    assert {"__main__.py", "tessera/__init__.py", "tessera/protocol.py"} <= names
    assert {"tessera/node/serve.py", "tessera/train/reports.py"} <= names
    assert not {name for name in names if "cli" in name or "bundle" in name or "pyc" in name}


def test_the_same_files_give_the_same_bytes() -> None:
    first, second = build_bundle(), build_bundle()

    assert first == second
    assert first.sha256 == hashlib.sha256(first.data).hexdigest()


@pytest.mark.parametrize(
    ("name", "content"), travelling_files(), ids=lambda value: str(value)[:40]
)
def test_every_travelling_file_is_python_3_8(name: str, content: bytes) -> None:
    tree = ast.parse(content, filename=name, feature_version=(3, 8))

    imported = {
        (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    outside = {module.split(".")[0] for module in imported} - set(sys.stdlib_module_names)
    assert outside <= {"tessera", "numpy", "torch"}


def test_node_protocol_and_train_are_imported_without_any_other_package() -> None:
    code = f"""
import sys
sys.path.insert(0, {str(SOURCES)!r})
for name in ("django", "rest_framework", "celery", "numpy", "torch", "httpx"):
    sys.modules[name] = None
import tessera.protocol, tessera.train
import tessera.node.__main__
print(sorted(name for name in sys.modules if name.startswith("tessera.cli")))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout == "[]\n"


def test_the_node_imports_its_own_modules_at_their_start() -> None:
    """A forked process has closed the bundle."""
    late = [
        (name, node.lineno)
        for name, content in travelling_files()
        if name.startswith("tessera/node/")
        for function in ast.walk(ast.parse(content))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tessera")
    ]

    assert late == []


def test_the_server_does_not_load_what_every_fork_would_copy() -> None:
    heavy = {"tarfile", "zipfile", "shutil", "bz2", "lzma", "random", "subprocess", "threading"}
    code = f"""
import sys
sys.path.insert(0, {str(SOURCES)!r})
import tessera.node.serve
print(*sorted(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )

    assert not heavy & set(done.stdout.split())


def old_python() -> str | None:
    """A Python 3.8 of this machine, if there is one."""
    places = [
        *Path("/usr/bin").glob("python3.8"),
        *Path.home().glob(".pyenv/versions/3.8*/bin/python"),
    ]
    return str(places[0]) if places else None


def test_a_job_runs_under_python_3_8(home: Path) -> None:
    from session import Session, declare_isolation, make_spec

    python = old_python()
    if python is None:
        pytest.skip("this machine has no Python 3.8")
    declare_isolation(home, visible_paths=[{"path": str(Path(python).resolve().parents[1])}])
    path = home / "node.pyz"
    path.write_bytes(build_bundle().data)
    session = Session(home, python=python, bundle=path)
    script = "from tessera import train; train.report(step=1); print(train.job().role)"
    spec = make_spec(f"{python} -c '{script}'")

    hello = session.ask("hello", protocol=1)["hello"]
    session.start(spec)
    status = session.exit_of(spec)

    assert hello["python"].startswith("3.8")
    assert session.log(spec) == "worker\n"
    assert status.reports_end > 0
    session.ask("probe")
    session.ask("telemetry")
    session.close()


def test_the_bindings_of_nvml_travel_inside_the_package() -> None:
    # At the top level they would replace those that a job has installed.
    names = {name for name, _ in travelling_files()}

    assert "tessera/node/pynvml.py" in names
    assert "pynvml.py" not in names
