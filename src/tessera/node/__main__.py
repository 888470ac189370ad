"""Entry point of the zipapp: ``serve`` a session, or print a ``probe`` once."""

from __future__ import annotations

import json
import sys
from typing import List, Optional

from tessera.node import probe, serve
from tessera.node.runs import Store


def main(arguments: List[str], started_from: Optional[str] = None) -> int:
    """Run one of the two commands.

    Args:
        arguments: the command.
        started_from: path of the bundle, if the code was loaded from another path.

    Returns:
        The exit status.
    """
    root, bundle = serve.where_am_i()
    bundle = started_from or bundle
    if arguments == ["serve"]:
        serve.Server(Store(root), bundle).serve()
        return 0
    if arguments == ["probe"]:
        sys.stdout.write(json.dumps(probe.inventory(root).to_json()) + "\n")
        return 0
    sys.stderr.write("usage: node.pyz serve | probe\n")
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
