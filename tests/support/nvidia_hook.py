"""A stand-in for NVIDIA's container runtime hook, for test daemons on machines without a GPU.

Docker calls an executable of this name before a container with a device request starts. Like the
real one, the stand-in enters the mount namespace of the container and creates the device files of
the requested GPUs there. They are copies of ``/dev/null``, which the device control group of each
container allows. It writes down each call.
"""

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "nvidia-container-runtime-hook"
_PROGRAM = """
#!/usr/bin/python3
import json, os, subprocess, sys

place = os.path.dirname(os.path.realpath(__file__))
gpus = json.load(open(os.path.join(place, "gpus.json")))
state = json.load(sys.stdin)
config = json.load(open(os.path.join(state["bundle"], "config.json")))
variables = dict(one.partition("=")[::2] for one in config["process"]["env"])
wanted = variables.get("NVIDIA_VISIBLE_DEVICES", "void")
call = {"stage": sys.argv[1], "pid": state["pid"], "wanted": wanted}
with open(os.path.join(place, "calls"), "a") as calls:
    calls.write(json.dumps(call) + "\\n")
names = [] if wanted in ("", "void", "none") else wanted.split(",")
if wanted == "all":
    names = sorted(gpus)
unknown = [name for name in names if name not in gpus]
if unknown:
    sys.exit("nvidia-container-cli: device error: %s: unknown device" % unknown[0])
top = config["root"]["path"]
if not os.path.isabs(top):
    top = os.path.join(state["bundle"], top)
files = ["nvidia%d" % gpus[name] for name in names]
files += ["nvidiactl", "nvidia-uvm"] if names else []
for file in files:
    command = ["mknod", "-m", "666", os.path.join(top, "dev", file), "c", "1", "3"]
    subprocess.run(["nsenter", "--target", str(state["pid"]), "--mount", *command], check=True)
"""


@dataclass(frozen=True)
class NvidiaHook:
    """An installed stand-in; ``directory`` belongs on the PATH of the daemon."""

    directory: Path

    @property
    def calls(self) -> list[dict[str, Any]]:
        """What the daemon requested: stage, pid of the container, and the names of GPUs."""
        path = self.directory / "calls"
        return (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )


def install_hook(directory: Path, gpus: dict[str, int]) -> NvidiaHook:
    """Install the stand-in for GPUs by UUID, with the numbers of their device files."""
    (directory / "gpus.json").write_text(json.dumps(gpus))
    program = directory / NAME
    program.write_text(textwrap.dedent(_PROGRAM).lstrip())
    program.chmod(0o755)
    return NvidiaHook(directory)
