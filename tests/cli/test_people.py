"""``tessera user`` and ``tessera tenant`` send what was typed, and passwords only in bodies."""

from tests.support.prepared_portal import CommandLine, Portal

ALICE = {
    "id": 5, "username": "alice", "name": "Alice", "email": "a@example.org",
    "is_active": True, "is_cluster_admin": False, "last_login": None,
}  # fmt: skip
VISION = {
    "id": 2, "name": "vision", "display_name": "Vision", "note": "", "role": "lead",
    "archived_at": None,
}  # fmt: skip
MEMBER = {"id": 9, "tenant": "vision", "username": "alice", "role": "lead", "max_devices": 8}
LOGIN = {
    "id": 4, "tenant": "vision", "registry": "docker.io", "username": "robot",
    "changed_at": "2026-11-01T00:00:00Z",
}  # fmt: skip


def listed(*rows: object) -> dict[str, object]:
    return {"results": list(rows), "next_cursor": None}


def test_users_are_listed_added_and_changed(tessera: CommandLine, portal: Portal) -> None:
    portal.answer("GET", "users/", listed(ALICE))
    portal.answer("POST", "users/", ALICE, status=201)
    portal.answer("PATCH", "users/5/", {**ALICE, "is_active": False})

    shown = tessera("user", "list").out
    added = tessera(
        "user", "add", "alice", "--email", "a@example.org", "--password-stdin", stdin="s3cr3t\n"
    )
    sent = portal.asked[-1].json
    changed = tessera("user", "set", "alice", "--inactive")

    assert "alice" in shown
    assert (added.status, sent["password"], sent["is_cluster_admin"]) == (0, "s3cr3t", False)
    assert "s3cr3t" not in added.out
    assert portal.asked[-1].json == {"is_active": False}
    assert "inactive" in changed.out
    assert tessera("user", "set", "nobody", "--active").status != 0


def test_tenants_are_created_changed_and_archived(tessera: CommandLine, portal: Portal) -> None:
    portal.answer("GET", "tenants/", listed(VISION))
    portal.answer("POST", "tenants/", VISION, status=201)
    portal.answer("PATCH", "tenants/2/", VISION)
    portal.answer("POST", "tenants/2/archive/", {**VISION, "archived_at": "2026-11-01T00:00:00Z"})

    assert tessera("tenant", "add", "vision", "--display-name", "Vision").status == 0
    assert portal.asked[-1].json == {"name": "vision", "display_name": "Vision", "note": ""}
    assert tessera("tenant", "set", "vision", "--note", "x").status == 0
    assert portal.asked[-1].json == {"note": "x"}
    assert "archived" in tessera("tenant", "archive", "vision").out
    assert "Vision" in tessera("tenant", "list").out


def test_members_are_added_changed_and_removed(tessera: CommandLine, portal: Portal) -> None:
    portal.answer("GET", "members/", listed(MEMBER))
    portal.answer("POST", "members/", MEMBER, status=201)
    portal.answer("PATCH", "members/9/", MEMBER)
    portal.answer("DELETE", "members/9/", {})

    assert tessera("tenant", "add-member", "vision", "alice", "--role", "lead").status == 0
    assert portal.asked[-1].json == {
        "tenant": "vision", "username": "alice", "role": "lead", "max_devices": None,
    }  # fmt: skip
    assert tessera("tenant", "set-member", "vision", "alice", "--role", "lead").status == 0
    assert portal.asked[-1].json == {"role": "lead"}
    assert tessera("tenant", "remove-member", "vision", "alice").status == 0
    assert (portal.asked[-1].method, portal.asked[-2].path) == (
        "DELETE",
        "/api/v1/members/?tenant=vision",
    )
    assert "lead" in tessera("tenant", "members", "vision").out


def test_registry_logins_are_set_listed_and_deleted(tessera: CommandLine, portal: Portal) -> None:
    portal.answer("GET", "registry-logins/", listed({**LOGIN, "tenant": "language"}, LOGIN))
    portal.answer("POST", "registry-logins/", LOGIN, status=201)
    portal.answer("DELETE", "registry-logins/4/", {})

    ran = tessera(
        "tenant",
        "registry-login",
        "vision",
        "docker.io",
        "--user",
        "robot",
        "--password-stdin",
        stdin="s3cr3t\n",
    )
    sent = portal.asked[-1].json
    shown = tessera("tenant", "registry-logins", "vision").out

    assert sent == {
        "tenant": "vision", "registry": "docker.io", "username": "robot", "password": "s3cr3t",
    }  # fmt: skip
    assert ran.status == 0
    assert "s3cr3t" not in ran.out + ran.err + shown
    assert tessera("tenant", "registry-logout", "vision", "docker.io").status == 0
    assert tessera("tenant", "registry-logout", "vision", "quay.io").status != 0


def test_a_device_is_quarantined_and_released(tessera: CommandLine, portal: Portal) -> None:
    node = {"id": 3, "name": "gpu-1", "state": "ready", "host": "10.0.0.1", "port": 22}
    portal.answer("GET", "nodes/", listed(node))
    portal.answer("POST", "nodes/3/quarantine-device/", node)
    portal.answer("POST", "nodes/3/release-device/", node)
    portal.answer("POST", "nodes/3/check-device/", node)

    held = tessera("node", "quarantine", "gpu-1", "2", "--reason", "hot", "--hours", "1.5")
    assert portal.asked[-1].json == {"device": 2, "reason": "hot", "hours": 1.5}
    freed = tessera("node", "release", "gpu-1", "2")

    assert portal.asked[-1].json == {"device": 2}
    assert (held.status, freed.status) == (0, 0)
    assert tessera("node", "check", "gpu-1", "2").status == 0
    assert (portal.asked[-1].path, portal.asked[-1].json) == (
        "/api/v1/nodes/3/check-device/", {"device": 2}
    )  # fmt: skip
