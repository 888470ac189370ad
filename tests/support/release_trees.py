"""Source trees of two releases: one of a commit, and a synthetic next release of this tree.

The next release has one more migration that expands, with its column in the model, a newer version
of the node protocol with one more field in the status of runs, and the next release number.
"""

import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Final

from portal.migration_rules import RELEASE, RELEASED
from tessera import protocol
from tests.conftest import PROJECT_ROOT

NEXT_MIGRATION: Final = "9000_next_release"
_MIGRATION: Final = """
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "{newest}")]
    operations = [
        migrations.AddField("job", "weather", models.CharField(max_length=20, db_default="sunny")),
        migrations.CreateModel("Forecast", [("id", models.BigAutoField(primary_key=True))]),
    ]
"""


def can_make_trees() -> str:
    """Return the reason why no trees can be made here; empty if they can."""
    if not shutil.which("git"):
        return "git is not installed"
    found = _git("rev-parse", "--show-toplevel", check=False)
    return "" if found else "this is not a clone of the repository"


def tree_of_commit(folder: Path, commit: str) -> Path:
    """Write the files of a commit into a new folder, and return it."""
    folder.mkdir(parents=True)
    archive = folder.with_suffix(".tar")
    archive.write_bytes(_git("archive", "--format=tar", commit))
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    archive.unlink()
    return folder


def next_release(folder: Path) -> Path:
    """Write the synthetic next release of this tree into a new folder, and return it."""
    names = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split(b"\0")
    for name in filter(None, names):
        source, target = PROJECT_ROOT / os.fsdecode(name), folder / os.fsdecode(name)
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    _add_migration(folder)
    _replace(folder, "portal/migration_rules.py", rf"^RELEASE: Final = {RELEASE}$",
             f"RELEASE: Final = {RELEASE + 1}")  # fmt: skip
    for app, newest in RELEASED.items():
        _replace(folder, "portal/migration_rules.py", rf'"{app}": "{newest}"',
                 f'"{app}": "{_newest(app)}"')  # fmt: skip
    newer = protocol.PROTOCOL_VERSION + 1
    _replace(folder, "src/tessera/run_spec.py", r"^PROTOCOL_VERSION = \d+$",
             f"PROTOCOL_VERSION = {newer}")  # fmt: skip
    _replace(folder, "src/tessera/protocol.py", r"^    network: str = SHARED_NETWORK\n",
             '    network: str = SHARED_NETWORK\n    weather: str = "sunny"\n')  # fmt: skip
    return folder


def _add_migration(folder: Path) -> None:
    text = _MIGRATION.format(newest=_newest("scheduling"))
    (folder / f"scheduling/migrations/{NEXT_MIGRATION}.py").write_text(text.lstrip())
    _replace(
        folder, "scheduling/jobs/models.py", r"^(    reason_text = .*\n)",
        '\\1    weather = models.CharField(max_length=20, db_default="sunny")\n',
    )  # fmt: skip


def _newest(app: str) -> str:
    return max(path.stem for path in (PROJECT_ROOT / app / "migrations").glob("[0-9]*.py"))


def _replace(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / name
    text, count = re.subn(old, new, path.read_text(), count=1, flags=re.MULTILINE)
    assert count == 1, f"{name} has changed: {old}"
    path.write_text(text)


def _git(*arguments: str, check: bool = True) -> bytes:
    return subprocess.run(
        ["git", *arguments], cwd=PROJECT_ROOT, capture_output=True, check=check, timeout=60
    ).stdout
