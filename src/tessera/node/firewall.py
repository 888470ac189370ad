"""Blocked addresses of jobs, and packet filter rules of a container's own network.

A container with its own network can reach all hosts outside of the node, but not the node
itself,
other jobs on it, or the metadata services of clouds, which have credentials of the machine. From
outside only its declared ports can be reached. The rules are text for ``iptables`` or ``nft``,
whichever the node has; they are loaded into the namespace, never into the node's own tables.
Plain jobs have no routes to the same addresses, see ``networks``.
"""

from __future__ import annotations

import socket
from typing import List, NamedTuple, Sequence, Tuple

from tessera.node import system

IPTABLES, NFT = "iptables", "nft"
_WAIT = "-w 5"  # seconds to wait for the lock that all iptables processes share
SEARCH = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")

METADATA = (
    "169.254.0.0/16",  # AWS, Azure, GCP, OCI, OpenStack: 169.254.169.254, and other link-local
    "100.100.100.200/32",  # Alibaba Cloud
    "168.63.129.16/32",  # Azure's host agent
    "192.0.0.192/32",  # Oracle Cloud Classic
    "fe80::/10",  # link-local: the node, and its network segment
    "fd00:ec2::/32",  # AWS over IPv6: fd00:ec2::254
    "fd20:ce::254/128",  # GCP over IPv6
)
"""Addresses of cloud metadata services with credentials; DNS there remains allowed."""


class FirewallRules(NamedTuple):
    """The rules of one namespace.

    Attributes:
        blocked: networks in CIDR notation to which the job opens no connection.
        resolvers: blocked addresses at which port 53 is still allowed.
        ports: TCP ports on which the job accepts connections from outside.
    """

    blocked: Tuple[str, ...]
    resolvers: Tuple[str, ...]
    ports: Tuple[int, ...]


def rules_for(ports: Sequence[int], attached: Sequence[str] = ()) -> FirewallRules:
    """Build the rules for a job on this node.

    Args:
        ports: declared ports of the job.
        attached: networks that its own interface is in, with the gateway and other jobs.
    """
    blocked = (*hidden(), *attached)
    return FirewallRules(blocked, tuple(resolvers()), tuple(sorted(set(ports))))


def hidden() -> Tuple[str, ...]:
    """Return the networks that own networks cannot reach: metadata services and this node."""
    return (*METADATA, *node_addresses())


def tool() -> str:
    """Return the program that loads rules on this node; empty if none."""
    for name in (IPTABLES, NFT):
        if system.which(name, SEARCH):
            return name
    return ""


def node_addresses() -> List[str]:
    """Return all addresses of this node except loopback, each as a network of one address."""
    return [*_ipv4_addresses(), *_ipv6_addresses()]


def _ipv4_addresses() -> List[str]:
    """Return the local addresses in the kernel's routing tables."""
    found = []
    address = ""
    for line in system.read_text("/proc/net/fib_trie").splitlines():
        words = line.split()
        if line.rstrip().endswith("host LOCAL"):
            if not address.startswith("127."):
                found.append(f"{address}/32")
        elif words and words[0] == "|--":
            address = words[1]
    return sorted(set(found))


def _ipv6_addresses() -> List[str]:
    found = []
    for line in system.read_text("/proc/net/if_inet6").splitlines():
        raw = bytes.fromhex(line.split()[0])
        address = socket.inet_ntop(socket.AF_INET6, raw)
        if address != "::1":
            found.append(f"{address}/128")
    return sorted(set(found))


def resolvers() -> List[str]:
    """Return the name servers of this node that others can reach."""
    lines = [line.split() for line in system.read_text("/etc/resolv.conf").splitlines()]
    named = [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"]
    return [one for one in named if family(one) and one != "::1" and not one.startswith("127.")]


def family(address: str) -> int:
    """Return 4 or 6 for an address or a network; 0 if it is not valid."""
    host = address.partition("/")[0]
    for number, kind in ((4, socket.AF_INET), (6, socket.AF_INET6)):
        try:
            socket.inet_pton(kind, host)
        except (OSError, ValueError):
            continue
        return number
    return 0


def script(rules: FirewallRules, with_tool: str) -> str:
    """Build a shell script that loads the rules into the namespace in which it runs.

    It fails if the rules are not in force at its end. Loading is idempotent.
    """
    return _iptables_script(rules) if with_tool == IPTABLES else _nft_script(rules)


def _iptables_script(rules: FirewallRules) -> str:
    path = f"PATH={':'.join(SEARCH)}"
    return "\n".join(
        (
            "set -e",
            f"{path}; export PATH",
            f"iptables-restore {_WAIT} <<'RULES'",
            *_iptables(rules, 4),
            "RULES",
            # A kernel without IPv6 refuses its table, and does not need a filter.
            "if grep -qv ' lo$' /proc/net/if_inet6 2>/dev/null"
            f" || ip6tables {_WAIT} -L >/dev/null 2>&1",
            f"then ip6tables-restore {_WAIT} <<'RULES'",
            *_iptables(rules, 6),
            "RULES",
            "fi",
            "",
        )
    )


def _iptables(rules: FirewallRules, version: int) -> List[str]:
    reject = "icmp-port-unreachable" if version == 4 else "icmp6-port-unreachable"
    icmp = "icmp" if version == 4 else "ipv6-icmp"
    new = "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"
    lines = ["*filter", ":INPUT DROP [0:0]", ":FORWARD DROP [0:0]", ":OUTPUT ACCEPT [0:0]"]
    lines += ["-A INPUT -i lo -j ACCEPT", f"-A INPUT {new}", f"-A INPUT -p {icmp} -j ACCEPT"]
    lines += [f"-A INPUT -p tcp --dport {port} -j ACCEPT" for port in rules.ports]
    lines += ["-A OUTPUT -o lo -j ACCEPT", f"-A OUTPUT {new}"]
    if version == 6:  # IPv6 needs ICMP for neighbour discovery
        lines.append("-A OUTPUT -p ipv6-icmp -j ACCEPT")
    for address in _of(version, rules.resolvers):
        for kind in ("udp", "tcp"):
            lines.append(f"-A OUTPUT -d {address} -p {kind} --dport 53 -j ACCEPT")
    for network in _of(version, rules.blocked):
        lines.append(f"-A OUTPUT -d {network} -j REJECT --reject-with {reject}")
    return [*lines, "COMMIT"]


def _nft_script(rules: FirewallRules) -> str:
    lines = ["    type filter hook output priority 0; policy accept;", "    oifname lo accept"]
    lines += ["    ct state established,related accept", "    meta l4proto 58 accept"]
    for version, word in ((4, "ip"), (6, "ip6")):
        for address in _of(version, rules.resolvers):
            lines.append(f"    {word} daddr {address} udp dport 53 accept")
            lines.append(f"    {word} daddr {address} tcp dport 53 accept")
        lines += [f"    {word} daddr {net} reject" for net in _of(version, rules.blocked)]
    accepted = [f"    tcp dport {port} accept" for port in rules.ports]
    return "\n".join(
        (
            "set -e",
            f"PATH={':'.join(SEARCH)}; export PATH",
            "nft -f - <<'RULES'",
            "table inet tessera",
            "delete table inet tessera",
            "table inet tessera {",
            "  chain output {",
            *lines,
            "  }",
            "  chain input {",
            "    type filter hook input priority 0; policy drop;",
            "    iifname lo accept",
            "    ct state established,related accept",
            "    meta l4proto { 1, 58 } accept",
            *accepted,
            "  }",
            "}",
            "RULES",
            "",
        )
    )


def _of(version: int, addresses: Sequence[str]) -> List[str]:
    return [address for address in addresses if family(address) == version]
