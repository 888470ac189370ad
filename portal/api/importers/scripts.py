"""Pieces of shell that translated commands begin with."""

import shlex
from typing import Final

# Nodes run commands with /bin/sh; elsewhere they run with bash.
BASH_PRELUDE: Final = (
    '[ -n "${BASH_VERSION-}" ] || [ ! -f "$0" ] || ! command -v bash >/dev/null || '
    'exec bash "$0"\n'
)


def change_directory(path: str) -> str:
    """A line that goes to ``path``, or ends the job there."""
    return f"cd -- {shlex.quote(path)} || exit 1\n"


def read_secrets(names: list[str]) -> str:
    """Lines that put secrets into variables of the same name, as the other system does."""
    return "".join(
        f'{name}="$(cat "$TESSERA_JOB_SECRETS_DIR/{name}")" && export {name} || exit 1\n'
        for name in names
    )
