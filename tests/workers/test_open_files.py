"""A worker with node sessions may open as many files as its hard limit allows."""

import resource
import subprocess
import sys

import pytest

from tests.conftest import PROJECT_ROOT

PROGRAM = """
import os, resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, hard))
os.environ["DJANGO_SETTINGS_MODULE"] = "portal.settings.test"
import django
django.setup()
from workers.celery_steps import allow_open_files
allow_open_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize("soft", [256, "hard"])
def test_the_soft_limit_of_open_files_becomes_the_hard_limit(soft: int | str) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(soft=soft)],
        cwd=PROJECT_ROOT, capture_output=True, text=True, check=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{PROJECT_ROOT}:{PROJECT_ROOT}/src"},
    )  # fmt: skip

    assert int(done.stdout) == (hard if 0 < hard <= 1 << 20 else 1 << 20)
