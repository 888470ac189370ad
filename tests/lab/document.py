"""The commands of docs/lab.md, run as a reader types them: one bash after another, same tokens."""

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import PROJECT_ROOT

DOCUMENT = PROJECT_ROOT / "docs" / "lab.md"
_BLOCK = re.compile(r"^```sh ([a-z-]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMELESS = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SECONDS = 300.0


def blocks() -> dict[str, str]:
    """The commands of the document by name, in order."""
    found = _BLOCK.findall(DOCUMENT.read_text())
    assert len({name for name, _ in found}) == len(found), "a name is used twice"
    return dict(found)


def unnamed_blocks() -> list[str]:
    """Fenced commands that have no name, so that nobody would run them."""
    return _NAMELESS.findall(_BLOCK.sub("", DOCUMENT.read_text()))


@dataclass
class Reader:
    """Somebody who follows the document.

    Attributes:
        variables: what the reader's shell knows.
        done: names of the blocks that were typed, in order.
    """

    variables: dict[str, str]
    done: list[str] = field(default_factory=list)

    def type(self, name: str) -> str:
        """Type the commands of one block; what they print."""
        self.done.append(name)
        return self._run(blocks()[name])

    def keep(self, name: str, *variables: str) -> None:
        """Type a block that sets variables, and keep these."""
        self.done.append(name)
        shown = " ".join(f'"${variable}"' for variable in variables)
        said = self._run(f"{blocks()[name]}\nprintf '%s\\n' {shown}").splitlines()
        self.variables.update(zip(variables, said[-len(variables) :], strict=True))

    def _run(self, commands: str) -> str:
        script = f"set -eu -o pipefail\n. examples/lab/lab.sh\n{commands}"
        done = subprocess.run(
            ["bash", "-s"], input=script, capture_output=True, text=True, check=False,
            cwd=PROJECT_ROOT, env=_environment() | self.variables, timeout=_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("TESSERA_")}


def example(name: str) -> Path:
    """A file of the lab."""
    return PROJECT_ROOT / "examples" / "lab" / name
