"""The commands: what they ask, what they print, how they exit."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tenants.roles import Scope
from tessera.bundle import build_helper
from tessera.cli.exits import UsageError
from tessera.cli.job_details import harmless
from tessera.cli.node_settings import parse_visible_path
from tessera.cli.nodes import parse_address
from tests.support.prepared_portal import CommandLine, Portal

Body = dict[str, Any]
NODE = {"id": 3, "name": "gpu-1", "state": "ready", "host": "10.0.0.1", "port": 22}
TOKEN = {"id": 1, "key": "key-1", "prefix": "key", "scopes": ["read"], "expires_at": None}


def test_a_command_becomes_a_job_and_each_word_stays_as_it_was_typed(
    tessera: CommandLine, portal: Portal, job: Body
) -> None:
    portal.answer("POST", "jobs/", job, status=201)

    ran = tessera("submit", "--vc", "vision-a", "--devices", "2", "--", "echo", "a b", "$HOME")

    assert ran.status == 0
    assert "job 7 hello: queued" in ran.out
    assert portal.asked[0].json == {
        "name": "echo",
        "virtual_cluster": "vision-a",
        "roles": {"worker": {"instances": 1, "devices": 2, "command": "echo 'a b' '$HOME'"}},
    }


def test_the_version_is_printed_by_a_command_and_by_an_option(tessera: CommandLine) -> None:
    by_option, by_command = tessera("--version"), tessera("version")

    assert by_option == by_command
    assert by_option.status == 0
    assert by_option.out.startswith("tessera ")


def test_the_helper_is_written_with_the_steps_that_install_it(
    tessera: CommandLine, tmp_path: Path
) -> None:
    ran = tessera("node", "helper", str(tmp_path / "helper.pyz"), "--account", "gpu")
    refused = tessera("node", "helper", str(tmp_path / "x"), "--account", "a ALL=(ALL)")

    assert ran.status == 0
    assert (tmp_path / "helper.pyz").read_bytes() == build_helper().data
    assert build_helper().sha256 in ran.out
    assert (
        "gpu ALL=(root) NOPASSWD: /usr/bin/python3 -I -S /usr/local/lib/tessera/helper.pyz\n"
        in ran.out
    )
    assert refused.status == 2
    assert not (tmp_path / "x").exists()


def test_every_option_of_submit_lands_in_its_field(
    tessera: CommandLine, portal: Portal, job: Body
) -> None:
    portal.answer("POST", "jobs/", job, status=201)

    words = "submit --name n --vc v --command c --role r --instances 2 --devices 4 --type cpu-a"
    more = "--cpus 8 --memory 4GiB --image i --priority prod --opportunistic --env A=1=2 --env B="
    more += " --per-device"
    assert tessera(*words.split(), *more.split()).status == 0

    role = {
        "instances": 2, "devices": 4, "device_types": ["cpu-a"], "cpus": 8.0, "memory": "4GiB",
        "image": "i", "env": {"A": "1=2", "B": ""}, "command": "c", "processes": "per-device",
    }  # fmt: skip
    assert portal.asked[0].json == {
        "name": "n", "virtual_cluster": "v", "priority": "prod", "class": "opportunistic",
        "roles": {"r": role},
    }  # fmt: skip


def test_a_file_is_sent_as_it_is(
    tessera: CommandLine, portal: Portal, job: Body, tmp_path: Path
) -> None:
    portal.answer("POST", "jobs/", job, status=201)
    file = tmp_path / "job.yaml"
    file.write_text("# note\nname: hello\n")

    assert tessera("submit", str(file)).status == 0

    assert portal.asked[0].body == b"# note\nname: hello\n"
    assert portal.asked[0].headers["Content-Type"] == "application/yaml"


def test_the_name_given_beside_a_file_replaces_its_own(
    tessera: CommandLine, portal: Portal, job: Body
) -> None:
    portal.answer("POST", "jobs/", job, status=201)

    ran = tessera("submit", "-", "--vc", "b", stdin="{name: x, virtual_cluster: a, roles: {}}")

    assert ran.status == 0
    assert portal.asked[0].json == {"name": "x", "virtual_cluster": "b", "roles": {}}


@pytest.mark.parametrize(
    ("words", "stdin", "said"),
    [
        (("submit",), "", "nothing to submit"),
        (("submit", "/no/such.yaml"), "", "cannot be read"),
        (("submit", "-", "--devices", "2"), "name: x", "edit the file instead"),
        (("submit", "-", "--vc", "b"), "protocolVersion: 2", "not a native job"),
        (("submit", "-", "--vc", "b"), "a: [", "not valid YAML"),
        (("submit", "--command", "a", "--", "b"), "", "two commands"),
        (("submit", "--env", "A", "--", "b"), "", "NAME=VALUE"),
        (("submit", "--follow", "--json", "--", "b"), "", "cannot be combined"),
    ],
)
def test_invalid_arguments_are_refused_before_a_request(
    tessera: CommandLine, portal: Portal, words: tuple[str, ...], stdin: str, said: str
) -> None:
    ran = tessera(*words, stdin=stdin)

    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err
    assert portal.asked == []


def test_warnings_do_not_mix_with_json(tessera: CommandLine, portal: Portal, job: Body) -> None:
    answer = job | {"warnings": [{"field": "image", "message": "ignored"}]}
    portal.answer("POST", "jobs/", answer, status=201)

    ran = tessera("submit", "--json", "--", "true")

    assert json.loads(ran.out) == answer
    assert "image: ignored" in ran.err


@pytest.mark.parametrize(("state", "status"), [("succeeded", 0), ("failed", 10), ("stopped", 11)])
def test_waiting_exits_as_the_job_ended(
    tessera: CommandLine, portal: Portal, job: Body, state: str, status: int
) -> None:
    portal.answer("POST", "jobs/", job, status=201)
    portal.answer("GET", "jobs/7/", job | {"state": state})

    assert tessera("submit", "--wait", "--", "true").status == status


def test_following_prints_the_log_and_exits_as_the_job_ended(
    tessera: CommandLine, portal: Portal, job: Body
) -> None:
    portal.answer("POST", "jobs/", job, status=201)
    portal.answer("GET", "jobs/7/", job | {"state": "failed"})
    portal.answer(
        "GET", "jobs/7/logs/", {"text": "boom\n", "next_offset": 5, "size": 5, "end": True}
    )

    ran = tessera("submit", "--follow", "--", "false")

    assert ran.status == 10
    assert "boom\n" in ran.out


def test_a_refusal_shows_field_value_and_remedy(tessera: CommandLine, portal: Portal) -> None:
    error = {
        "field": "virtual_cluster",
        "value": "[red]x",
        "message": "unknown",
        "remedy": "Use a",
    }
    problem = {"code": "unknown-vc", "title": "No such cluster", "errors": [error]}
    portal.answer("POST", "jobs/", problem, status=422)

    ran = tessera("submit", "--vc", "x", "--", "true")

    assert ran.status == 1
    for words in ("No such cluster", "unknown-vc", "virtual_cluster = [red]x", "Use a"):
        assert words in ran.err


@pytest.mark.parametrize(("status", "exit_status"), [(401, 4), (403, 4), (404, 5), (500, 1)])
def test_the_exit_status_distinguishes_refusals(
    tessera: CommandLine, portal: Portal, status: int, exit_status: int
) -> None:
    portal.answer("GET", "jobs/7/why/", {"title": "no"}, status=status)

    assert tessera("why", "7").status == exit_status


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_command_without_a_virtual_cluster_runs_in_the_only_one(
    tessera: CommandLine, portal: Portal, job: Body, number: int
) -> None:
    found = [{"id": one, "name": f"vc-{one}"} for one in range(number)]
    portal.answer("GET", "virtual-clusters/", {"results": found, "next": None})
    portal.answer("POST", "jobs/", job, status=201)

    tessera("submit", "--", "true")

    sent = portal.asked[-1].json
    assert sent.get("virtual_cluster") == ("vc-0" if number == 1 else None)


def test_without_credentials_the_command_names_the_login(
    tessera: CommandLine, portal: Portal
) -> None:
    portal.answer("GET", "jobs/", {"title": "Sign in"}, status=401)

    ran = tessera("--url", portal.url, "ps")

    assert f"`tessera --url {portal.url} login`" in ran.err


def test_a_portal_that_does_not_answer_is_status_three(
    tessera: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSERA_URL", "http://127.0.0.1:1")

    ran = tessera("ps")

    assert ran.status == 3
    assert "tessera up" in ran.err


def test_ps_lists_the_requested_jobs(tessera: CommandLine, portal: Portal, job: Body) -> None:
    portal.answer("GET", "jobs/", {"results": [job], "next_cursor": None})

    ran = tessera("ps", "--state", "queued", "--vc", "vision-a", "--order", "devices", "--utc")

    assert "vision-a" in ran.out
    assert portal.asked[0].path.endswith("?state=queued&virtual_cluster=vision-a&order=devices")


def test_why_shows_reason_blockers_and_remedies(tessera: CommandLine, portal: Portal) -> None:
    why = {
        "code": "vc-guarantee-in-use", "text": "All 4 devices are used.",
        "blocked_by": [3], "blocked_by_others": 2, "unblock": ["Wait for job 3."], "eta": None,
        "pending": ["steps", "eta"],
    }  # fmt: skip
    portal.answer("GET", "jobs/7/why/", why)

    ran = tessera("why", "7")

    assert ran.out.splitlines() == [
        "All 4 devices are used. (vc-guarantee-in-use)",
        "  blocked by job 3",
        "  blocked by 2 jobs of other tenants",
        "  → Wait for job 3.",
        "  still computing: remedies and start estimate",
    ]


@pytest.mark.parametrize(
    ("eta", "said"),
    [
        ({"p10": 0, "p90": 0}, "now"),
        ({"p10": 960, "p90": 1980}, "in 15 – 35 min"),
        ({"p10": 3360, "p90": 5400, "open": False}, "in 55 min – 1 h 30 min"),
        ({"p10": 3360, "p90": 1_200_000, "open": True}, "in 55 min or later"),
        ({"p10": 0, "p90": 1_200_000, "open": True}, "at any time"),
    ],
)
def test_why_shows_a_start_estimate_like_the_pages(
    tessera: CommandLine, portal: Portal, eta: Body, said: str
) -> None:
    portal.answer("GET", "jobs/7/why/", {"code": "c", "text": "t", "eta": eta})
    portal.answer("POST", "jobs/plan/", {"fits": "later", "reason": {}, "starts": eta})

    assert tessera("why", "7").out.splitlines() == ["t (c)", f"  expected {said}"]
    assert tessera("plan", "--vc", "a", "--", "true").out.splitlines()[-1] == f"starts {said}"


@pytest.mark.parametrize(("fits", "status"), [("now", 0), ("later", 0), ("never", 6)])
def test_a_plan_submits_nothing_and_exits_by_its_answer(
    tessera: CommandLine, portal: Portal, fits: str, status: int
) -> None:
    portal.answer("POST", "jobs/plan/", {"fits": fits, "reason": {"code": "c", "text": "t"}})

    ran = tessera("plan", "--vc", "a", "--", "true")

    said = "does not fit" if fits == "never" else f"fits {fits}"
    assert (ran.status, ran.out.strip()) == (status, f"{said}: t (c)")
    assert [asked.path for asked in portal.asked] == ["/api/v1/jobs/plan/"]


def test_a_plan_without_a_code_prints_no_empty_parentheses(
    tessera: CommandLine, portal: Portal
) -> None:
    reason = {"code": "", "text": "It would start in the next round."}
    portal.answer("POST", "jobs/plan/", {"fits": "now", "reason": reason})

    ran = tessera("plan", "--vc", "a", "--", "true")

    assert ran.out.strip() == "fits now: It would start in the next round."


def test_stop_and_clone_name_the_job(tessera: CommandLine, portal: Portal, job: Body) -> None:
    portal.answer("POST", "jobs/7/stop/", job | {"state": "stopping"})
    portal.answer("POST", "jobs/7/clone/", job | {"id": 8}, status=201)

    assert "stopping" in tessera("stop", "7").out
    assert "job 8" in tessera("clone", "7").out


def test_logs_of_one_rank_are_printed_from_an_offset(tessera: CommandLine, portal: Portal) -> None:
    portal.answer(
        "GET", "jobs/7/logs/", {"text": "two\n", "next_offset": 8, "size": 8, "end": True}
    )

    ran = tessera("logs", "7", "--role", "worker", "--rank", "1", "--offset", "4")

    assert ran.out == "two\n"
    assert "role=worker&rank=1&offset=4" in portal.asked[0].path


def test_terminal_control_characters_are_escaped() -> None:
    shown = harmless("\x1b[32mok\x1b[0m\t\r\n\x1b]0;title\x07\x1b[2J\x9b")

    assert shown == "\x1b[32mok\x1b[0m\t\r\n\\x1b]0;title\\x07\\x1b[2J\\x9b"


def test_a_node_is_added_only_after_its_key_was_seen_and_agreed_to(
    tessera: CommandLine, portal: Portal
) -> None:
    portal.answer("POST", "nodes/", {"host_key_fingerprint": "SHA256:seen"}, status=409)

    ran = tessera("node", "add", "root@10.0.0.1:2222")

    assert ran.status == 2
    assert "SHA256:seen" in ran.err
    assert len(portal.asked) == 1


def test_with_yes_the_key_that_was_seen_is_sent_along(
    tessera: CommandLine, portal: Portal
) -> None:
    portal.answer("POST", "nodes/", {"host_key_fingerprint": "SHA256:seen"}, status=409)
    portal.answers["POST", "/api/v1/nodes/"].append((201, NODE))

    ran = tessera("node", "add", "root@gpu-1.example:2222", "--yes", "--label", "rack=1")

    first, second = (asked.json for asked in portal.asked)
    assert ran.status == 0
    assert first == {
        "name": "gpu-1", "user": "root", "host": "gpu-1.example", "port": 2222,
        "labels": {"rack": "1"},
    }  # fmt: skip
    assert second == first | {"host_key_fingerprint": "SHA256:seen"}


def test_a_key_that_differs_from_the_one_given_is_not_trusted(
    tessera: CommandLine, portal: Portal
) -> None:
    portal.answer("POST", "nodes/", {"host_key_fingerprint": "SHA256:other"}, status=409)

    ran = tessera("node", "add", "root@gpu-1", "--fingerprint", "SHA256:mine", "--yes")

    assert ran.status == 1
    assert len(portal.asked) == 1


@pytest.mark.parametrize(
    "address", ["", "host", "@host", "u@", "u@h:0", "u@h:99999", "u@h h", "u@a@b"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="USER@HOST"):
        parse_address(address)


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert parse_address("u@[fe80::1]:22") == {"user": "u", "host": "fe80::1", "port": 22}


@pytest.mark.parametrize("action", ["cordon", "uncordon", "drain"])
def test_a_node_is_named_by_its_name(tessera: CommandLine, portal: Portal, action: str) -> None:
    portal.answer("GET", "nodes/", {"results": [NODE], "next_cursor": None})
    portal.answer("POST", f"nodes/3/{action}/", NODE)

    assert tessera("node", action, "gpu-1", "--reason", "disk").status == 0

    assert portal.asked[1].json == {"reason": "disk"}


def test_a_node_is_reset_dedicated_and_shown_paths(tessera: CommandLine, portal: Portal) -> None:
    portal.answer("GET", "nodes/", {"results": [NODE], "next_cursor": None})
    portal.answer("POST", "nodes/3/reset-isolation/", NODE)
    portal.answer("PATCH", "nodes/3/", NODE)

    unasked = tessera("node", "reset-isolation", "gpu-1", "--reason", "clean")
    asked = tessera("node", "reset-isolation", "gpu-1", "--reason", "clean", "--yes")
    dedicated = tessera("node", "dedicate", "gpu-1", "vision")
    paths = tessera("node", "visible-paths", "gpu-1", "/data", "/scratch:rw@vision,audio")
    for setting, sent in (("isolated", "isolated"), ("default", "")):
        assert tessera("node", "job-network", "gpu-1", setting).status == 0
        assert portal.asked[-1].json == {"job_network": sent}

    assert unasked.status != 0
    assert (asked.status, dedicated.status, paths.status) == (0, 0, 0)
    assert [one["path"] for one in parse_all("/data:rw", "/x")] == ["/data", "/x"]
    (saved,) = parse_all("/saved:checkpoints@vision")
    assert (saved["path"], saved["writable"], saved["checkpoints"]) == ("/saved", False, True)


def test_the_share_of_each_device_is_set_and_returned_to_an_equal_part(
    tessera: CommandLine, portal: Portal
) -> None:
    portal.answer("GET", "nodes/", {"results": [NODE], "next_cursor": None})
    portal.answer("PATCH", "nodes/3/", NODE)

    def share(*options: str) -> object:
        assert tessera("node", "device-share", "gpu-1", *options).status == 0
        return portal.asked[-1].json

    assert share("--cpus", "0.5", "--memory", "1.5GiB") == {
        "device_cpus": 0.5,
        "device_memory_bytes": 3 << 29,
    }
    assert share("--memory", "default") == {"device_memory_bytes": None}
    assert share("--cpus", "default") == {"device_cpus": None}
    before = len(portal.asked)
    for wrong in ([], ["--cpus", "many"], ["--memory", "60 GB"], ["--memory", "-1"]):
        assert tessera("node", "device-share", "gpu-1", *wrong).status != 0
    assert len(portal.asked) == before


def parse_all(*texts: str) -> list[dict[str, object]]:
    return [parse_visible_path(text) for text in texts]


def test_an_unknown_node_is_reported_with_the_known_ones(
    tessera: CommandLine, portal: Portal
) -> None:
    portal.answer("GET", "nodes/", {"results": [NODE], "next_cursor": None})

    ran = tessera("node", "drain", "gpu-9")

    assert ran.status == 2
    assert "gpu-1" in ran.err


def test_no_node_is_declared_dead_without_confirmation(
    tessera: CommandLine, portal: Portal
) -> None:
    ran = tessera("node", "declare-dead", "gpu-1", "--reason", "burnt")

    assert ran.status == 2
    assert portal.asked == []


def test_virtual_clusters_are_listed_with_their_guarantees(
    tessera: CommandLine, portal: Portal
) -> None:
    vc = {
        "id": 1, "name": "vision-a", "tenant": "vision", "policy": "fifo",
        "cells": [{"chain": "cpu-a-node", "level": "socket", "count": 2}],
        "pinned": [{"name": "rack-7", "address": "node-1/0"}],
    }  # fmt: skip
    portal.answer("GET", "virtual-clusters/", {"results": [vc], "next_cursor": None})

    shown = " ".join(tessera("vc", "list").out.split())

    assert "2 × socket of cpu-a-node, rack-7 (pinned, node-1/0)" in shown


def test_login_keeps_the_token_where_only_its_owner_reads_it(
    tessera: CommandLine, portal: Portal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    portal.answer("POST", "tokens/", TOKEN, status=201)
    portal.answer("GET", "nodes/", {"results": [], "next_cursor": None})

    ran = tessera("login", "--user", "alice", "--password-stdin", stdin="secret pw\n")
    monkeypatch.delenv("TESSERA_TOKEN")
    tessera("node", "list")

    stored = tmp_path / "config" / "tessera" / "credentials"
    assert ran.status == 0
    assert "secret pw" not in ran.out + ran.err + stored.read_text()
    assert "key-1" not in ran.out + ran.err
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert portal.asked[1].headers["Authorization"] == "Token key-1"


def test_login_takes_every_scope_that_the_roles_allow(
    tessera: CommandLine, portal: Portal
) -> None:
    errors = [{"field": "scopes", "value": "nodes:admin", "message": "no", "remedy": ""}]
    portal.answer("POST", "tokens/", {"code": "invalid", "errors": errors}, status=422)
    portal.answers["POST", "/api/v1/tokens/"].append((201, TOKEN))

    ran = tessera("login", "--user", "bob", "--password-stdin", stdin="pw\n")

    first, second = (set(asked.json["scopes"]) for asked in portal.asked)
    assert ran.status == 0
    assert first - second == {"nodes:admin"}


def test_a_stored_token_is_not_sent_to_another_portal(
    tessera: CommandLine, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    portal.answer("POST", "tokens/", TOKEN, status=201)
    portal.answer("GET", "nodes/", {"results": [], "next_cursor": None})
    tessera("login", "--user", "alice", "--password-stdin", stdin="pw\n")
    monkeypatch.delenv("TESSERA_TOKEN")

    tessera("--url", portal.url.replace("127.0.0.1", "localhost"), "node", "list")

    assert "Authorization" not in portal.asked[1].headers


def test_a_password_is_never_asked_for_without_a_terminal(tessera: CommandLine) -> None:
    ran = tessera("login", "--user", "alice")

    assert ran.status == 2
    assert "--password-stdin" in ran.err


def test_a_new_token_is_printed_alone(tessera: CommandLine, portal: Portal) -> None:
    portal.answer("POST", "tokens/", TOKEN, status=201)

    words = "token create ci --user alice --scope read --days 7 --tenant vision --password-stdin"
    ran = tessera(*words.split(), stdin="pw\n")

    assert ran.out == "key-1\n"
    assert portal.asked[0].json == {
        "name": "ci", "scopes": ["read"], "expires_in_days": 7, "tenant": "vision",
    }  # fmt: skip


def test_broken_credentials_are_reported_with_their_path(
    tessera: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TESSERA_TOKEN")
    folder = tmp_path / "config" / "tessera"
    folder.mkdir(parents=True)
    (folder / "credentials").write_text("{")

    ran = tessera("ps")

    assert ran.status == 2
    assert str(folder) in ran.err


def test_the_program_needs_no_django(tessera: CommandLine) -> None:
    import subprocess
    import sys

    blocked = "import sys; sys.modules['django'] = None; import tessera.cli.main, tessera.client"
    assert subprocess.run([sys.executable, "-c", blocked], check=False).returncode == 0


def test_a_simulation_takes_the_simulators_own_options(
    tessera: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, words: began.append(words))

    ran = tessera("simulate", "--policy", "fifo", "--help")

    assert (ran.status, ran.err) == (0, "")
    assert began[0][2:] == ["simulate", "--policy", "fifo", "--help"]
    assert Path(began[0][1]).name == "manage.py"


def test_the_help_of_a_token_names_every_scope_there_is(tessera: CommandLine) -> None:
    said = " ".join(tessera("token", "create", "--help").out.split())

    assert all(scope.value in said for scope in Scope)


def test_a_password_link_is_printed_alone_and_asked_for_with_a_password(
    tessera: CommandLine, portal: Portal
) -> None:
    link = {"username": "bob", "url": "http://x/password/link/s/", "expires_at": "2026-01-01"}
    portal.answer("POST", "password-links/", link, status=201)

    ran = tessera("password-link", "bob", "--user", "root", "--password-stdin", stdin="pw\n")

    assert ran.out == "http://x/password/link/s/\n"
    assert portal.asked[0].json == {"username": "bob"}
    assert portal.asked[0].headers["Authorization"].startswith("Basic ")
