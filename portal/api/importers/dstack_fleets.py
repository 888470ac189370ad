"""dstack fleets of SSH hosts, as nodes of this cluster."""

import re
from typing import Any, Final

from portal.api.importers.hosts import read_hosts
from portal.api.importers.reading import Section

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,39})")


def read_fleet(top: Section) -> tuple[dict[str, Any], ...]:
    """The nodes of a fleet; one that clouds would make is refused."""
    name = top.text("name") or "fleet"
    if not _NAME.fullmatch(name):
        top.at("name").refuse(name, "is no name of a fleet.", "Write letters, digits and -.")
    top.lacks("placement", "Which nodes lie together is said by the cells.", needed=False)
    top.lacks("blocks", "Devices are shared out one by one.", needed=False)
    top.lacks("env", "Nodes have no variables of their own.", needed=True)
    if top.peek("ssh_config") is None:
        words = "is not given: only fleets of SSH hosts become nodes."
        top.at("ssh_config").refuse(None, words, "Give ssh_config with hosts.", "missing-field")
        top.rest()
        return ()
    config = top.section("ssh_config")
    config.lacks("network", "Nodes meet at the address that the portal uses.", needed=False)
    nodes = read_hosts(config, pool=name, host_key="hostname", labels={"fleet": name})
    config.finish()
    return tuple(nodes)
