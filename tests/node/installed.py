"""The helper and its rule of sudo, installed for the processes of one test alone."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tessera.bundle import build_helper
from tessera.node import helped

ACCOUNT = "tessera-test"
RULE = f"{ACCOUNT} ALL=(root) NOPASSWD: {' '.join(helped.COMMAND)}\n"


def prefix(
    home: Path,
    uid: int,
    *,
    program: bytes | None = None,
    rule: str = RULE,
    configuration: dict[str, Any] | None = None,
    mode: int = 0o755,
    owner: int = 0,
) -> list[str]:
    """What a command begins with to see the helper, its rule, and an account of the user.

    The files lie in the home, and cover those of the machine in a mount namespace of the command.
    """
    for needed in ("sudo", "unshare"):
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is not installed")
    top = home / "installed"
    top.mkdir(mode=0o755)
    subprocess.run(["cp", "-a", "/etc", top / "etc"], check=True)
    with (top / "etc" / "passwd").open("a") as file:
        file.write(f"{ACCOUNT}:*:{uid}:{uid}::{home}:/bin/sh\n")
    rules = top / "etc" / "sudoers.d" / "tessera-test"
    rules.write_text(rule)
    rules.chmod(0o440)
    if configuration is not None:
        (top / "etc" / "tessera").mkdir(exist_ok=True)
        (top / "etc" / "tessera" / "helper.json").write_text(json.dumps(configuration))
    installed = top / "lib" / "tessera" / "helper.pyz"
    installed.parent.mkdir(parents=True)
    installed.write_bytes(build_helper().data if program is None else program)
    installed.chmod(mode)
    os.chown(installed, owner, -1)
    script = f"mount --bind {top}/etc /etc && mount --bind {top}/lib /usr/local/lib"
    script += ' && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
