"""A node service in a separate process that a test starts and kills."""

import signal
import subprocess
import sys
from pathlib import Path

from django.db import connection

from tests.conftest import PROJECT_ROOT


class Killable:
    """Node services, one after the other."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the next service."""
        database = connection.settings_dict["NAME"]
        command = [sys.executable, "-m", "tests.support.node_service_process"]
        self._child = subprocess.Popen(
            [*command, str(database), str(self._data_dir)],
            cwd=PROJECT_ROOT,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{PROJECT_ROOT}:{PROJECT_ROOT}/src"},
        )

    def kill(self) -> None:
        """Kill the service that runs."""
        if self._child is not None:
            self._child.send_signal(signal.SIGKILL)
            self._child.wait()
            self._child = None
