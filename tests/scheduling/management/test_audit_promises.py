"""``manage.py audit_promises`` on an export: without database, Redis or secrets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from scheduling.common.canonical_json import canonical_json
from tests.factories.promises import DAY, VCS, WeekOptions, simulated_week

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def export(tmp_path: Path) -> Path:
    path = tmp_path / "export.json"
    path.write_bytes(
        canonical_json(simulated_week(1, WeekOptions(seconds=DAY / 8)).export(VCS[0]))
    )
    return path


def test_it_needs_no_database_redis_or_secrets(export: Path, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TESSERA_")}
    environment.pop("DJANGO_SETTINGS_MODULE", None)

    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "audit_promises", str(export), "--json", "o"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "o").read_text())["verdicts"]["violated"] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export.json", "o"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 99}'])
def test_a_file_of_other_content_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(CommandError, match=r"other\.json is not a readable export"):
        call_command("audit_promises", str(path))
