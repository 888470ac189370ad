"""``tessera device-type``: the types with their names, and changes of aliases."""

from tests.support.prepared_portal import CommandLine, Portal

ALIAS = {"id": 3, "alias": "fast", "device_type": "NVIDIA-A100"}


def test_types_are_listed_with_their_names(tessera: CommandLine, portal: Portal) -> None:
    row = {
        "device_type": "NVIDIA-A100", "devices": 8, "nodes": 1, "aliases": [ALIAS],
        "automatic": ["a100"],
    }  # fmt: skip
    portal.answer("GET", "device-types/", {"results": [row], "next_cursor": None})

    ran = tessera("device-type", "list")

    assert ran.status == 0
    assert ran.out.splitlines()[-1].split() == ["NVIDIA-A100", "8", "1", "fast", "a100"]


def test_an_alias_is_added_and_deleted(tessera: CommandLine, portal: Portal) -> None:
    portal.answer("POST", "device-aliases/", ALIAS)
    portal.answer("GET", "device-aliases/", {"results": [ALIAS], "next_cursor": None})
    portal.answer("DELETE", "device-aliases/3/", {})

    added = tessera("device-type", "alias", "NVIDIA-A100", "fast")
    removed = tessera("device-type", "unalias", "NVIDIA-A100", "Fast")
    unknown = tessera("device-type", "unalias", "NVIDIA-A100", "slow")

    assert "fast is an alias of NVIDIA-A100" in added.out
    assert removed.status == 0
    assert unknown.status != 0
    assert portal.asked[0].json == {"alias": "fast", "device_type": "NVIDIA-A100"}
