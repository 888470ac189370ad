"""Packet filter rules of a job's own network, loaded into real namespaces."""

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.node import firewall
from tessera.node.firewall import IPTABLES, NFT, FirewallRules
from tests.support.network_namespaces import (
    METADATA,
    NODE,
    WORLD,
    greeting,
    listener,
    node_in_world,
)

PORT, OTHER = 15001, 15002


def test_metadata_addresses_of_clouds_and_those_of_the_node_are_blocked() -> None:
    rules = firewall.rules_for([PORT], ["172.17.0.0/16"])

    assert {"169.254.0.0/16", "100.100.100.200/32", "fd00:ec2::/32"} < set(rules.blocked)
    assert {"172.17.0.0/16", *firewall.node_addresses()} <= set(rules.blocked)
    assert not [net for net in rules.blocked if net.startswith("127.") or net == "::1/128"]
    assert rules.ports == (PORT,)


@pytest.mark.parametrize("tool", [IPTABLES, NFT])
def test_loaded_rules_let_out_and_in_what_they_name(tool: str) -> None:
    if not shutil.which(tool, path=":".join(firewall.SEARCH)):
        pytest.skip(f"needs {tool}")
    with node_in_world() as (job, world):
        blocked = (f"{METADATA}/32", "100.100.100.200/32", "fd00:ec2::/32")
        script = firewall.script(FirewallRules(blocked, ("100.100.100.200",), (PORT,)), tool)
        for _ in range(2):  # loading them again changes nothing
            job.run("sh", "-c", script)
        with (
            listener(world, WORLD, 443),
            listener(world, METADATA, 80),
            listener(world, "100.100.100.200", 53),
            listener(world, "100.100.100.200", 80),
            listener(job, NODE, PORT),
            listener(job, NODE, OTHER),
            listener(job, "127.0.0.1", OTHER),
        ):
            assert greeting(job, WORLD, 443)
            assert greeting(job, "100.100.100.200", 53)
            assert not greeting(job, METADATA, 80)
            assert not greeting(job, "100.100.100.200", 80)
            assert greeting(world, NODE, PORT)
            assert not greeting(world, NODE, OTHER)
            assert greeting(job, NODE, OTHER)
            assert greeting(job, "127.0.0.1", OTHER)


def test_a_script_fails_where_its_rules_cannot_be_loaded() -> None:
    wrong = FirewallRules(("203.0.113.0/24",), (), (1 << 20,))
    with node_in_world() as (job, _):
        for tool in (IPTABLES, NFT):
            code = job.run("sh", "-c", f"({firewall.script(wrong, tool)}) 2>/dev/null; echo $?")
            assert int(code) != 0


@given(
    st.sampled_from(["10.1.2.3", "10.0.0.0/8", "fd00::1", "::/0", "", "node-1", "1.2.3", "x:y"])
)
def test_an_address_has_one_family_or_none(text: str) -> None:
    expected = {"10.1.2.3": 4, "10.0.0.0/8": 4, "fd00::1": 6, "::/0": 6}

    assert firewall.family(text) == expected.get(text, 0)
