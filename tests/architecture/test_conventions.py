"""Conventions of the code that no linter knows."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.budgets import BUDGETS, GENEROUS

ROOT = Path(__file__).resolve().parent.parent.parent
ROOMS = ("portal", "workers", "scheduling", "tenants", "src/tessera")
MODULES = [
    path
    for room in ROOMS
    for path in sorted((ROOT / room).rglob("*.py"))
    if "migrations" not in path.relative_to(ROOT).parts
]
# Names that other packages, users and jobs call; each needs a docstring.
INTERFACES = (
    "src/tessera/client.py",
    "src/tessera/train",
    "scheduling/core/cells/engine.py",
    "scheduling/core/policy_interface",
    "scheduling/core/policies/base.py",
    "scheduling/core/round/decide.py",
    *(
        f"scheduling/{path.name}/services"
        for path in sorted((ROOT / "scheduling").iterdir())
        if (path / "services").is_dir()
    ),
    "scheduling/sweeps/services.py",
    "tenants/services",
    "workers/services",
    "workers/transports",
)
TEMPLATE_COLUMNS = 200
FUNCTION_LINES = 60
MOST_SHARED_NAMES = 40
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# The one writer of a job's state, and the one that makes new rows.
WRITERS = {"scheduling/jobs/services/lifecycle.py", "scheduling/jobs/services/submission.py"}


def undocumented(node: ast.Module | ast.ClassDef) -> Iterator[str]:
    """Names of public classes and functions without a word about them."""
    for child in node.body:
        if not isinstance(child, DEFINITIONS) or child.name.startswith("_"):
            continue
        if child.name != "Meta" and not ast.get_docstring(child):
            yield f"{child.name} (line {child.lineno})"
        if isinstance(child, ast.ClassDef):
            yield from undocumented(child)


def test_every_module_reports_what_it_is_for() -> None:
    missing = []
    for path in MODULES:
        tree = ast.parse(path.read_text())
        if tree.body and not ast.get_docstring(tree):
            missing.append(str(path.relative_to(ROOT)))

    assert missing == []


@pytest.mark.parametrize("interface", INTERFACES)
def test_every_public_name_of_an_interface_is_documented(interface: str) -> None:
    root = ROOT / interface
    paths = [root] if root.is_file() else sorted(root.rglob("*.py"))
    missing = {
        str(path.relative_to(ROOT)): names
        for path in paths
        if (names := list(undocumented(ast.parse(path.read_text()))))
    }

    assert paths
    assert missing == {}


def test_nobody_but_its_writer_moves_a_job() -> None:
    moves = re.compile(r"\bstate=JobState\b|\bjobs?\.state = ")
    found = {
        str(path.relative_to(ROOT))
        for path in MODULES
        for line in path.read_text().splitlines()
        if moves.search(line) and not re.search(r"filter\(|exclude\(", line)
    }

    assert found <= WRITERS


def test_tests_know_every_budget_of_seconds_in_services() -> None:
    uses = re.compile(r"(?:time_limit\(|monotonic\(\) \+ |\bseconds=)([A-Z_]+)\b")
    found = {
        (path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."), name)
        for path in sorted(ROOT.glob("scheduling/*/services/*.py"))
        for name in uses.findall(path.read_text())
    }
    known = {(module, name) for module, names in BUDGETS.items() for name in names}

    assert found
    assert found <= known | GENEROUS


def test_time_comes_from_the_database() -> None:
    """Hosts' clocks differ: ``tenants.clock`` has the time of leases, heartbeats and events."""
    host_time = re.compile(r"\b(timezone\.now|datetime\.(now|utcnow))\b")
    # Defaults of columns that nothing compares; the supervisor's own marks of a change.
    exempt = {"tenants/clock.py", "portal/supervisor/silence.py", "portal/task_requests.py"}
    found = {
        str(path.relative_to(ROOT))
        for path in MODULES
        if not path.is_relative_to(ROOT / "src") and "tenants/models" not in str(path)
        if host_time.search(path.read_text())
    }

    assert found - exempt == set()


def test_events_of_jobs_are_written_in_two_places() -> None:
    """``services.lifecycle`` keeps their times in order; the first event has none before it."""
    writes = re.compile(r"\bJobEvent(\.objects\.(bulk_)?create)?\(")
    found = {
        str(path.relative_to(ROOT))
        for path in MODULES
        if writes.search(re.sub(r"class JobEvent\(", "", path.read_text()))
    }

    assert found == {
        "scheduling/jobs/services/lifecycle.py",
        "scheduling/jobs/services/submission.py",
    }


def test_templates_have_short_lines() -> None:
    """A formatter indents templates; it cannot break a line, so this test bounds the lines."""
    long = [
        f"{path.relative_to(ROOT)}:{number}: {len(line)} characters"
        for path in sorted((ROOT / "templates").rglob("*"))
        if path.is_file()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > TEMPLATE_COLUMNS
    ]

    assert long == []


def test_formatters_cannot_change_what_templates_render() -> None:
    """Indentation goes into a text area and into a message that is not ``trimmed``."""
    multi_line = re.compile(
        r"{% blocktranslate (?!trimmed\b)[^%]*%}[^{]*\n"
        r"|<textarea\b(?:[^>{]|{%.*?%}|{{.*?}})*>[^<]*\n"
    )
    found = [
        f"{path.relative_to(ROOT)}: {match.group()[:60]}"
        for path in sorted((ROOT / "templates").rglob("*.html"))
        for match in multi_line.finditer(path.read_text())
    ]

    assert found == []


def test_no_test_module_imports_another() -> None:
    """Shared helpers are in ``tests.support``, ``tests.factories`` and ``tests.strategies``."""
    found = {
        str(path.relative_to(ROOT)): imported
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if (imported := list(imported_test_modules(ast.parse(path.read_text()))))
    }

    assert found == {}


def imported_test_modules(tree: ast.Module) -> Iterator[str]:
    """Test modules that a module imports, at any depth, as a module or by names in them."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        # ``tests.node`` imports its modules by their last name.
        yield from (
            name
            for name in names
            if name.partition(".")[0] not in ROOMS and name.rpartition(".")[2].startswith("test_")
        )


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import tests.cli.test_slurm", "tests.cli.test_slurm"),
        ("from tests.cli import test_slurm", "tests.cli.test_slurm"),
        ("def f():\n    from tests.cli.test_slurm import helper", "tests.cli.test_slurm"),
        ("from test_slurm import helper", "test_slurm"),
    ],
)
def test_an_import_of_a_test_module_is_found(source: str, name: str) -> None:
    assert list(imported_test_modules(ast.parse(source))) == [name]


def test_every_module_of_scheduling_is_in_a_layer() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (inside,) = [contract for contract in contracts if contract["name"] == "Inside scheduling"]
    layers = {name.strip() for layer in inside["layers"] for name in layer.split("|")}

    outside = []
    for path in (ROOT / "scheduling").rglob("*.py"):
        parts = path.relative_to(ROOT / "scheduling").with_suffix("").parts
        if parts[-1] != "__init__" and not {parts[0], ".".join(parts[:2])} & layers:
            outside.append("/".join(parts))

    assert outside == []
    for layer in layers:
        assert (ROOT / "scheduling" / layer.replace(".", "/")).exists() or (
            ROOT / "scheduling" / f"{layer.replace('.', '/')}.py"
        ).exists(), layer


def test_functions_have_at_most_sixty_lines() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {node.name} has {lines} lines"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    ]

    assert long == []


def test_few_public_classes_share_a_name() -> None:
    """One meaning per name; Django demands some, such as ``Command``."""
    modules: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    shared = {name: places for name, places in modules.items() if len(places) > 1}

    assert len(shared) <= MOST_SHARED_NAMES, sorted(shared)
