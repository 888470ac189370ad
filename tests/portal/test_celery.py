"""What a worker loads before it works: a start waits for it, three times over."""

import json
import subprocess
import sys
from pathlib import Path

from tests.conftest import PROJECT_ROOT

LOAD = """
import json, sys
from portal.celery import app
app.loader.import_default_modules()
print(json.dumps([sorted(app.tasks), sorted(sys.modules)]))
"""


def test_a_worker_loads_its_tasks_and_neither_pages_nor_the_parts_of_scipy(
    tmp_path: Path,
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=PROJECT_ROOT, capture_output=True, text=True,
        check=True, timeout=100,
        env={"TESSERA_DATA_DIR": str(tmp_path), "PYTHONPATH": "src:."},
    )  # fmt: skip

    tasks, loaded = json.loads(ran.stdout)
    assert "scheduling.tasks.run_round" in tasks
    assert not {"portal.urls", "portal.api.urls", "scipy.interpolate", "scipy.optimize"} & {
        *loaded
    }
