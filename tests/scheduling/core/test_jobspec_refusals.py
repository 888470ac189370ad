"""What is refused, for every field: code, value and remedy."""

import copy
import json

import pytest

from scheduling.core.jobspec import SPEC_FIELDS, InvalidJobSpecError, parse, parse_stored
from scheduling.core.jobspec.errors import MAX_ERRORS

GIT = "source.git.url"
ROLE = "roles.worker"
CONTAINER = f"{ROLE}.container"

# field, bad value, code, a word of the remedy
REFUSED = [
    ("schema_version", 2, "out-of-range", "Write 1"),
    ("schema_version", "1", "wrong-type", "Write 1"),
    ("name", None, "missing-field", "Specify name"),
    ("name", "", "too-long", "1 to 63"),
    ("name", "n" * 64, "too-long", "1 to 63"),
    ("name", 17, "wrong-type", "1 to 63"),
    ("name", "a\nb", "malformed", "printable"),
    ("name", "a\x00b", "malformed", "NUL"),
    ("name", "a\u202eb", "malformed", "printable"),
    ("name", "\ud800", "malformed", "character itself"),
    ("name", " a", "malformed", "space"),
    ("note", 1, "wrong-type", "500"),
    ("note", "n" * 501, "too-long", "500"),
    ("note", "a\x07", "malformed", "500"),
    ("labels", ["a"], "wrong-type", "label keys"),
    ("labels", {f"k{i}": "" for i in range(65)}, "too-long", "at most 64"),
    ("labels", {"a b": "c"}, "malformed", "team"),
    ("labels", {"-a": "c"}, "malformed", "team"),
    ("labels", {1: "c"}, "wrong-type", "quotes"),
    ("labels", {"a": 1}, "wrong-type", "0 to 63"),
    ("labels", {"a": "b" * 64}, "too-long", "0 to 63"),
    ("virtual_cluster", None, "missing-field", "Specify virtual_cluster"),
    ("virtual_cluster", "", "malformed", "vision-a"),
    ("virtual_cluster", "../x", "malformed", "vision-a"),
    ("virtual_cluster", 3, "wrong-type", "vision-a"),
    ("priority", -1, "out-of-range", "0 to 1000"),
    ("priority", 1001, "out-of-range", "0 to 1000"),
    ("priority", True, "wrong-type", "0 to 1000"),
    ("priority", 1.5, "wrong-type", "0 to 1000"),
    ("priority", "", "malformed", "prod"),
    ("priority", "a b", "malformed", "prod"),
    ("class", "best-effort", "malformed", "guaranteed, opportunistic"),
    ("class", 1, "wrong-type", "guaranteed, opportunistic"),
    ("roles", None, "missing-field", "Specify roles"),
    ("roles", {}, "missing-field", "at least one"),
    ("roles", [], "wrong-type", "role names"),
    ("roles", "worker", "wrong-type", "role names"),
    ("roles", {"Worker": {"command": "true"}}, "malformed", "begins with a letter"),
    ("roles", {"a/b": {"command": "true"}}, "malformed", "begins with a letter"),
    ("roles", {"a" * 33: {"command": "true"}}, "malformed", "at most 32"),
    ("roles", {7: {"command": "true"}}, "wrong-type", "quotes"),
    ("roles", {f"r{i}": {"command": "true"} for i in range(33)}, "too-long", "at most 32"),
    ("roles.worker", None, "wrong-type", "keys and values"),
    ("roles.worker", "echo", "wrong-type", "keys and values"),
    (f"{ROLE}.instances", 0, "out-of-range", "1 to 1000"),
    (f"{ROLE}.instances", 1001, "out-of-range", "1 to 1000"),
    (f"{ROLE}.instances", "2", "wrong-type", "whole number"),
    (f"{ROLE}.instances", True, "wrong-type", "whole number"),
    (f"{ROLE}.instances", 10**400, "out-of-range", "1 to 1000"),
    (f"{ROLE}.devices", "0", "wrong-type", "whole number"),
    (f"{ROLE}.requires", "new", "wrong-type", "driver, cuda, device_memory"),
    (f"{ROLE}.requires.driver", "new", "malformed", "Write a version as text"),
    (f"{ROLE}.requires.cuda", 12.4, "malformed", "Write a version as text"),
    (f"{ROLE}.requires.device_memory", "much", "malformed", "8GiB"),
    (f"{ROLE}.devices", -1, "out-of-range", "0 to 256"),
    (f"{ROLE}.devices", 257, "out-of-range", "0 to 256"),
    (f"{ROLE}.devices", 1.0, "wrong-type", "whole number"),
    (f"{ROLE}.devices", False, "wrong-type", "whole number"),
    (f"{ROLE}.device_types", 3, "wrong-type", "list"),
    (f"{ROLE}.device_types", [3], "wrong-type", "device type"),
    (f"{ROLE}.device_types", ["a b"], "malformed", "device type"),
    (f"{ROLE}.device_types", ["a", "a"], "duplicate", "once"),
    (f"{ROLE}.device_types", [f"t{i}" for i in range(17)], "too-long", "16"),
    (f"{ROLE}.within", "rac", "malformed", "rack"),
    (f"{ROLE}.within", 1, "wrong-type", "rack"),
    (f"{ROLE}.pinned_cell", 1, "wrong-type", "1 to 63"),
    (f"{ROLE}.pinned_cell", "", "too-long", "1 to 63"),
    (f"{ROLE}.pinned_cell", "p" * 64, "too-long", "1 to 63"),
    (f"{ROLE}.pinned_cell", "a\nb", "malformed", "printable"),
    (f"{ROLE}.cpus", 0, "out-of-range", "above 0"),
    (f"{ROLE}.cpus", 4097, "out-of-range", "4096"),
    (f"{ROLE}.cpus", float("nan"), "out-of-range", "above 0"),
    (f"{ROLE}.cpus", float("inf"), "out-of-range", "above 0"),
    (f"{ROLE}.cpus", "2", "wrong-type", "number"),
    (f"{ROLE}.cpus", True, "wrong-type", "number"),
    (f"{ROLE}.memory", 8, "out-of-range", "8GiB"),
    (f"{ROLE}.memory", "8", "malformed", "8GiB"),
    (f"{ROLE}.memory", "8 apples", "malformed", "8GiB"),
    (f"{ROLE}.memory", "-1GiB", "malformed", "8GiB"),
    (f"{ROLE}.memory", "٨GiB", "malformed", "8GiB"),
    (f"{ROLE}.memory", "65TiB", "out-of-range", "64TiB"),
    (f"{ROLE}.memory", 8.5, "wrong-type", "8GiB"),
    (f"{ROLE}.command", None, "missing-field", "Specify command"),
    (f"{ROLE}.command", "", "malformed", "script"),
    (f"{ROLE}.command", " \n", "malformed", "script"),
    (f"{ROLE}.command", ["echo", "a"], "wrong-type", "one text"),
    (f"{ROLE}.command", "a\0b", "malformed", "NUL"),
    (f"{ROLE}.command", "é" * 32_769, "too-long", "64 KiB"),
    (f"{ROLE}.image", "", "malformed", "registry.example.org"),
    (f"{ROLE}.image", "-v", "malformed", "registry.example.org"),
    (f"{ROLE}.image", "a b", "malformed", "registry.example.org"),
    (f"{ROLE}.image", "UPPER", "malformed", "registry.example.org"),
    (f"{ROLE}.image", "a:b:c", "malformed", "registry.example.org"),
    (f"{ROLE}.image", "a\n", "malformed", "registry.example.org"),
    (f"{ROLE}.image", "a" * 513, "too-long", "registry.example.org"),
    (f"{ROLE}.image", 3, "wrong-type", "registry.example.org"),
    (f"{ROLE}.image_secret", "a b", "malformed", "name of one of the role's secrets"),
    (f"{ROLE}.image_secret", 3, "wrong-type", "name of one of the role's secrets"),
    (CONTAINER, "host", "wrong-type", "user, ipc, shm"),
    (f"{CONTAINER}.user", "root", "malformed", "node, image"),
    (f"{CONTAINER}.ipc", "shareable", "malformed", "private, host"),
    (f"{CONTAINER}.shm", "1XB", "malformed", "8GiB"),
    (f"{ROLE}.processes", 8, "wrong-type", "per-instance, per-device"),
    (f"{ROLE}.processes", "per-gpu", "malformed", "per-instance, per-device"),
    (f"{CONTAINER}.rdma", "yes", "wrong-type", "true or false"),
    (f"{CONTAINER}.nofile", 1023, "out-of-range", "1024"),
    (f"{CONTAINER}.nofile", (1 << 20) + 1, "out-of-range", "1048576"),
    (f"{CONTAINER}.stack", 1, "out-of-range", "8GiB"),
    (f"{CONTAINER}.workdir", "work", "malformed", "absolute path"),
    (f"{CONTAINER}.workdir", "/a/../b", "malformed", "absolute path"),
    (f"{CONTAINER}.entrypoint", 1, "wrong-type", "true or false"),
    (f"{CONTAINER}.extra_hosts", {"-a": "10.0.0.1"}, "malformed", "host name"),
    (f"{CONTAINER}.extra_hosts", {"a": "10.0.0.256"}, "malformed", "IP address"),
    (f"{CONTAINER}.extra_hosts", {"a": "b\n10.0.0.1"}, "malformed", "IP address"),
    (f"{CONTAINER}.privileged", True, "unknown-field", "user"),
    (f"{ROLE}.env", ["A=b"], "wrong-type", "a map of names to strings"),
    (f"{ROLE}.env", {"1A": "b"}, "malformed", "letters"),
    (f"{ROLE}.env", {"A-B": "b"}, "malformed", "letters"),
    (f"{ROLE}.env", {"A\n": "b"}, "malformed", "letters"),
    (f"{ROLE}.env", {"TESSERA_X": "b"}, "reserved-name", "another name"),
    (f"{ROLE}.env", {"MASTER_ADDR": "b"}, "reserved-name", "another name"),
    (f"{ROLE}.env", {"CUDA_VISIBLE_DEVICES": "b"}, "reserved-name", "another name"),
    (f"{ROLE}.env", {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=80G"}, "reserved-name", "another"),
    (f"{ROLE}.env", {"CUDA_MPS_": "b"}, "reserved-name", "another name"),
    (f"{ROLE}.env", {"NVIDIA_GPU_MEMORY_LIMIT": "b"}, "reserved-name", "another name"),
    (f"{ROLE}.secrets", {"CUDA_MPS_PIPE_DIRECTORY": "s"}, "reserved-name", "another name"),
    (f"{ROLE}.env", {"A": 3}, "wrong-type", "quotes"),
    (f"{ROLE}.env", {"A": True}, "wrong-type", "quotes"),
    (f"{ROLE}.env", {"A": None}, "wrong-type", "quotes"),
    (f"{ROLE}.env", {"A": "a\0"}, "malformed", "NUL"),
    (f"{ROLE}.env", {"A": "a" * 32_769}, "too-long", "32 KiB"),
    (f"{ROLE}.env", {f"A{i}": "" for i in range(257)}, "too-long", "256"),
    (f"{ROLE}.secrets", "s", "wrong-type", "a map of names to strings"),
    (f"{ROLE}.secrets", {"A/B": "s"}, "malformed", "letters"),
    (f"{ROLE}.secrets", {"TESSERA_A": "s"}, "reserved-name", "another name"),
    (f"{ROLE}.secrets", {"A": 12345}, "wrong-type", "64 KiB"),
    (f"{ROLE}.secrets", {"A": "hunter2" * 10_000}, "too-long", "64 KiB"),
    (f"{ROLE}.secrets", {"A": "(redacted)"}, "malformed", "again"),
    (f"{ROLE}.secrets", {f"A{i}": "" for i in range(65)}, "too-long", "64"),
    (f"{ROLE}.ports", [80], "wrong-type", "labels"),
    (f"{ROLE}.ports", {"a-b": 1}, "malformed", "label"),
    (f"{ROLE}.ports", {"http": 0}, "out-of-range", "1 to 100"),
    (f"{ROLE}.ports", {"http": 101}, "out-of-range", "1 to 100"),
    (f"{ROLE}.ports", {"http": "1"}, "wrong-type", "1 to 100"),
    (f"{ROLE}.completion", 1, "wrong-type", "min_failed"),
    (f"{ROLE}.completion.min_failed", 0, "out-of-range", "-1"),
    (f"{ROLE}.completion.min_failed", -2, "out-of-range", "-1"),
    (f"{ROLE}.completion.min_failed", 2, "conflict", "from 1 to 1"),
    (f"{ROLE}.completion.min_failed", "1", "wrong-type", "-1"),
    (f"{ROLE}.completion.min_succeeded", 0, "out-of-range", "-1"),
    (f"{ROLE}.completion.min_succeeded", 2, "conflict", "from 1 to 1"),
    ("part", {"rank": 0, "size": 2}, "conflict", "gang: false"),
    ("part.rank", -1, "out-of-range", "0 to 999"),
    ("part.size", 0, "out-of-range", "1 to 1000"),
    ("part.group", "g" * 64, "too-long", "63"),
    ("gang", "true", "wrong-type", "without quotes"),
    ("gang", 0, "wrong-type", "without quotes"),
    ("max_duration", 0, "out-of-range", "1d2h30m"),
    ("max_duration", "", "malformed", "1d2h30m"),
    ("max_duration", "2 hours", "malformed", "1d2h30m"),
    ("max_duration", "1:30:00", "malformed", "1d2h30m"),
    ("max_duration", "1h\n", "malformed", "1d2h30m"),
    ("max_duration", "400d", "out-of-range", "1d2h30m"),
    ("max_duration", 1.5, "wrong-type", "1d2h30m"),
    ("not_before", "tomorrow", "malformed", "ISO 8601"),
    ("not_before", "2030-05-01T08:00:00", "malformed", "offset"),
    ("not_before", "2030-05-01", "malformed", "offset"),
    ("not_before", "1999-01-01T00:00:00Z", "out-of-range", "ISO 8601"),
    ("not_before", 1893456000, "wrong-type", "ISO 8601"),
    ("held", "yes", "wrong-type", "true or false"),
    ("held", 1, "wrong-type", "true or false"),
    ("after", 17, "wrong-type", "list"),
    ("after", ["17"], "wrong-type", "id of a job"),
    ("after", [0], "out-of-range", "id of a job"),
    ("after", [1, 1], "duplicate", "once"),
    ("after", list(range(1, 102)), "too-long", "100"),
    ("retries", 3, "wrong-type", "user"),
    ("retries.user", -2, "out-of-range", "-1 to 100"),
    ("retries.user", 101, "out-of-range", "-1 to 100"),
    ("retries.resource-limit", "1", "wrong-type", "-1 to 100"),
    ("retries.node", True, "wrong-type", "-1 to 100"),
    ("retries.image", 1.0, "wrong-type", "-1 to 100"),
    ("retries.preempted", -2, "out-of-range", "-1 to 100"),
    ("retries.timeout", 101, "out-of-range", "-1 to 100"),
    ("retries.platform", [], "wrong-type", "-1 to 100"),
    ("grace_seconds", -1, "out-of-range", "0 to 3600"),
    ("grace_seconds", "2h", "out-of-range", "0 to 3600"),
    ("source", "https://example.org/a", "wrong-type", "git"),
    ("source", {}, "missing-field", "git or archive"),
    ("source.git", "https://example.org/a", "wrong-type", "url"),
    (GIT, None, "missing-field", "Specify url"),
    (GIT, 3, "wrong-type", "https://"),
    (GIT, "http://example.org/a", "malformed", "https://"),
    (GIT, "file:///etc/passwd", "malformed", "https://"),
    (GIT, "ext::sh -c id", "malformed", "https://"),
    (GIT, "--upload-pack=id", "malformed", "https://"),
    (GIT, "git@-oProxyCommand=id:a", "malformed", "https://"),
    (GIT, "-x@example.org:a", "malformed", "https://"),
    (GIT, "git@example.org:-a", "malformed", "https://"),
    (GIT, "ssh://-oProxyCommand=id/a", "malformed", "https://"),
    (GIT, "ssh://-x@example.org/a", "malformed", "https://"),
    (GIT, "https://example.org", "malformed", "https://"),
    (GIT, "https:///a", "malformed", "https://"),
    (GIT, "https://example.org/-a", "malformed", "https://"),
    (GIT, "https://example.org/a b", "malformed", "https://"),
    (GIT, "https://example.org/a\n", "malformed", "https://"),
    (GIT, "https://example.org:99999/a", "malformed", "https://"),
    (GIT, "https://alice:hunter2@example.org/a", "malformed", "Remove it"),
    (GIT, "https://hunter2@example.org/a", "malformed", "Remove it"),
    (GIT, "ssh://git:hunter2@example.org/a", "malformed", "Remove it"),
    (GIT, "/srv/repo", "malformed", "https://"),
    (GIT, "https://example.org/" + "a" * 2048, "too-long", "https://"),
    ("source.git.ref", "-x", "malformed", "main"),
    ("source.git.ref", "", "malformed", "main"),
    ("source.git.ref", "a..b", "malformed", "main"),
    ("source.git.ref", "a b", "malformed", "main"),
    ("source.git.ref", "a@{1}", "malformed", "main"),
    ("source.git.ref", "a.lock", "malformed", "main"),
    ("source.git.ref", 1, "wrong-type", "main"),
    ("source.archive", "abc", "malformed", "SHA-256"),
    ("source.archive", "AB" * 32, "malformed", "SHA-256"),
    ("source.archive", 1, "wrong-type", "SHA-256"),
    ("compat", "openpai", "wrong-type", "format"),
    ("compat.format", "lsf", "malformed", "openpai"),
    ("compat.format", None, "missing-field", "Specify format"),
    ("compat.role_names", {"worker": "a b"}, "malformed", "other system"),
    ("compat.role_names", {"ps": "PS"}, "conflict", "Remove"),
    ("elastic", [1, 8], "wrong-type", "mode, min, max"),
    ("elastic", {"min": 2, "max": 8}, "out-of-range", "requests 1 device:"),
    ("elastic.min", 0, "out-of-range", ""),
    ("elastic.max", "8", "wrong-type", ""),
    ("elastic.max", 65_537, "out-of-range", ""),
    ("parallel", 4, "wrong-type", "batch, micro_batches"),
    ("parallel.batch", None, "missing-field", "Samples of a step"),
    ("parallel.batch", 0, "out-of-range", ""),
    ("parallel.batch", 1 << 21, "out-of-range", ""),
    ("parallel.micro_batches", 5, "conflict", "divisor of 32"),
    ("parallel.micro_batches", 8.0, "wrong-type", ""),
    ("parallel.schedule", "zb", "malformed", "1f1b, gpipe"),
    ("parallel.plan", "best", "malformed", "auto, fixed"),
    ("parallel.max_tensor", 0, "out-of-range", ""),
    ("parallel.profile", "always", "malformed", "automatic, none, only"),
    ("parallel.stages", [], "wrong-type", "1 to 64 stages"),
    ("parallel.stages", [{"first": 0, "last": 1}] * 65, "wrong-type", "1 to 64 stages"),
    ("parallel.stages", [{"first": 1, "last": 2}], "conflict", "Correct"),
    ("parallel.stages", [{"first": 0, "last": 4, "data": 3}], "conflict", "Correct"),
    ("parallel.stages", [{"first": 0, "last": 4, "data": 2}], "conflict", "the devices"),
    ("elastic.mode", "elastic", "malformed", "adaptive_batch"),
    ("elastic.logical_workers", 4, "conflict", "mode: logical_workers"),
    ("elastic.determinism", "D1", "conflict", "mode: logical_workers"),
    ("elastic.determinism", "D3", "malformed", "D0, D1, D2"),
    ("elastic.executors", 2, "conflict", "mode: logical_workers"),
    ("elastic.initial_batch", 128, "conflict", "mode: adaptive_batch"),
    ("elastic.max_batch", 128, "conflict", "mode: adaptive_batch"),
    ("elastic.max_local_batch", "8", "wrong-type", ""),
    ("elastic.profile", "none", "conflict", "mode: adaptive_batch"),
    ("elastic.profile", "never", "malformed", "automatic, none, only"),
    ("elastic.epochs", 1.5, "wrong-type", ""),
    ("elastic.total_steps", 0, "out-of-range", ""),
    ("model", {}, "unsupported-field", "Omit model"),
    ("sharing", "soon", "wrong-type", "slowdown_percent"),
    ("sharing.guests", "all", "malformed", "same-tenant"),
    ("sharing.allowed", "yes", "wrong-type", "true"),
    ("sharing.wants", "1MiB", "out-of-range", "512MiB"),
    ("sharing.slowdown_percent", 0, "out-of-range", "1 to 20"),
    ("sharing.slowdown_percent", 21, "out-of-range", "1 to 20"),
    ("sharing.memory", "1GiB", "conflict", "allowed: true"),
    ("deadline", "soon", "malformed", ""),
    ("deadline", "2030-01-01T00:00:00", "malformed", ""),
    ("checkpoint_dir", "x/y", "malformed", "absolute path"),
    ("checkpoint_dir", "/x/../y", "malformed", "absolute path"),
    ("checkpoint_dir", "/x y", "malformed", "absolute path"),
    ("checkpoint_dir", "/", "malformed", "absolute path"),
    ("checkpoint_dir", "/etc", "malformed", "absolute path"),
    ("checkpoint_dir", "/etc/cron.d/", "malformed", "absolute path"),
    ("checkpoint_dir", "//etc", "malformed", "absolute path"),
    ("checkpoint_dir", "/usr/local/lib", "malformed", "absolute path"),
    ("checkpoint_dir", "/home/tessera/.ssh", "malformed", "absolute path"),
    ("checkpoint_dir", 7, "wrong-type", "absolute path"),
    ("checkpoint_dir", "Not_a_name", "malformed", "name of a storage"),
    ("storage", {"sets": "/data"}, "wrong-type", "{name: datasets"),
    ("storage", ["sets"] * 65, "wrong-type", "at most 64"),
    ("notify", [], "wrong-type", "on, to"),
    ("notify.on", ["done"], "malformed", "succeeded"),
    ("notify.to", "bob", "wrong-type", "user names"),
    ("idle_policy", [], "wrong-type", "warn_after"),
    ("idle_policy.below", 0, "out-of-range", ""),
    ("idle_policy.devices", "some", "malformed", ""),
    ("idle_policy.warn_after", "1m", "out-of-range", "300"),
    ("idle_policy.stop_after", "soon", "malformed", "1d2h30m"),
    ("idle_policy", {"warn_after": "1h", "stop_after": "1h"}, "conflict", "5 minutes"),
    ("log_rules", {}, "wrong-type", "list"),
    ("log_rules", [{"pattern": "(", "action": "label"}], "malformed", "not closed"),
    ("log_rules", [{"pattern": "x", "action": "stop"}], "malformed", "stop-retries"),
    ("metrics", {}, "wrong-type", "list"),
    ("metrics", [{"name": "loss", "pattern": "loss"}], "malformed", "group"),
    ("metrics", [{"name": "<b>", "pattern": "(x)"}], "malformed", "letters"),
]


def whole():
    return {
        "name": "hello",
        "virtual_cluster": "vision-a",
        "roles": {"worker": {"command": "true"}},
    }


def put(document, path, value):
    at = document
    *above, last = path.split(".")
    if path.startswith("source.git."):
        document["source"] = {"git": {"url": "https://example.org/a"}}
    if path.startswith("parallel."):
        document["parallel"] = {"batch": 32}
    if path.startswith("compat."):
        document["compat"] = {"format": "openpai"}
    if path.startswith(CONTAINER):
        document["roles"]["worker"]["image"] = "a/b"
    for key in above:
        at = at.setdefault(key, {})
    at[last] = value
    return document


def refusals(document):
    with pytest.raises(InvalidJobSpecError) as refused:
        parse(document)
    return refused.value.errors


@pytest.mark.parametrize(
    ("field", "value", "code", "remedy"),
    REFUSED,
    ids=[f"{field}={str(value)[:20]!r}" for field, value, *_ in REFUSED],
)
def test_a_bad_value_is_refused_with_code_value_and_remedy(field, value, code, remedy):
    errors = refusals(put(whole(), field, value))

    assert len(errors) == 1, errors
    (error,) = errors
    assert error.code == code
    assert error.field.startswith(field)
    assert remedy in error.remedy
    assert error.message.endswith(".")
    assert error.value
    json.dumps(error.to_json(), ensure_ascii=False).encode()


def test_the_table_of_refusals_covers_every_field():
    covered = {field.replace(".worker", ".<name>", 1) for field, *_ in REFUSED}

    missing = {info.path for info in SPEC_FIELDS} - covered

    assert not missing


def test_the_value_is_shown_shortened():
    (error,) = refusals(whole() | {"priority": "x" * 5000})

    assert error.value.startswith('"xxx')
    assert len(error.value) < 150


@pytest.mark.parametrize(
    ("change", "secret"),
    [
        ({"roles": {"worker": {"command": "true", "secrets": {"A": "hunter2\0"}}}}, "hunter2"),
        ({"roles": {"worker": {"command": "true", "secrets": "hunter2"}}}, "hunter2"),
        ({"roles": {"worker": {"command": "true", "secret": {"A": "hunter2"}}}}, "hunter2"),
        ({"roles": {"worker": {"command": "true", "password": "hunter2"}}}, "hunter2"),
        ({"roles": {"worker": [{"secrets": {"A": "hunter2"}}]}}, "hunter2"),
        ({"api_token": "hunter2"}, "hunter2"),
        ({"source": {"git": {"url": "https://a:hunter2@h/x"}}}, "hunter2"),
        ({"source": {"git": {"url": "http://a:hunter2@h/x"}}}, "hunter2"),
    ],
)
def test_a_secret_is_in_no_error(change, secret):
    with pytest.raises(InvalidJobSpecError) as refused:
        parse(whole() | change)

    assert secret not in str(refused.value)
    assert secret not in str([error.to_json() for error in refused.value.errors])


def test_all_errors_of_a_document_come_at_once():
    errors = refusals(
        {
            "nam": "x",
            "virtual_cluster": 3,
            "roles": {"worker": {"devices": 300, "gpus": 2}, "B": {"command": "true"}},
            "model": {"min": 1},
            "retries": {"usr": 1, "node": "x"},
        }
    )

    assert {(error.field, error.code) for error in errors} == {
        ("nam", "unknown-field"),
        ("name", "missing-field"),
        ("virtual_cluster", "wrong-type"),
        ("roles.worker.gpus", "unknown-field"),
        ("roles.worker.devices", "out-of-range"),
        ("roles.worker.command", "missing-field"),
        ("roles.B", "malformed"),
        ("retries.usr", "unknown-field"),
        ("retries.node", "wrong-type"),
        ("model", "unsupported-field"),
    }


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("nmae", "name"),
        ("virtual-cluster", "virtual_cluster"),
        ("taskRoles", "roles"),
        ("timeout", "max_duration"),
        ("roles.worker.gpus", "devices"),
        ("roles.worker.comand", "command"),
        ("roles.worker.Instances", "instances"),
        ("roles.worker.completion.min_fail", "min_failed"),
        ("retries.preempt", "preempted"),
        ("source.git.branch", None),
    ],
)
def test_an_unknown_key_is_refused_by_name_with_the_one_that_was_meant(path, meant):
    (error,) = refusals(put(whole(), path, "x"))

    assert (error.field, error.code) == (path, "unknown-field")
    assert path.rpartition(".")[2] in error.message
    assert (f"Did you mean {meant}?" if meant else "Valid fields: url, ref") in error.remedy


HYBRID = {"mode": "hybrid"}
FIXED = {"batch": 32, "plan": "fixed", "stages": [{"first": 0, "last": 6, "data": 4}]}


@pytest.mark.parametrize(
    ("devices", "parallel", "elastic", "field"),
    [
        (4, None, HYBRID, "parallel"),
        (4, {"batch": 32}, {"max": 8}, "elastic.mode"),
        (4, {"batch": 32}, {**HYBRID, "min": 3}, "elastic.min"),
        (4, {"batch": 32}, {**HYBRID, "max": 12}, "elastic.max"),
        (3, {"batch": 32}, None, "parallel.plan"),
        (4, {"batch": 32, "profile": "only"}, None, "parallel.profile"),
        (1, {"batch": 32, "profile": "only"}, HYBRID, "parallel.profile"),
        (4, {"batch": 32, "plan": "fixed"}, None, "parallel.stages"),
        (4, FIXED, {**HYBRID, "min": 2}, "elastic.min"),
        (4, FIXED, {**HYBRID, "max": 64}, "elastic.max"),
    ],
)
def test_parallelism_must_fit_sizes_and_mode(devices, parallel, elastic, field):
    document = whole()
    document["roles"]["worker"]["devices"] = devices
    document |= {"parallel": parallel} if parallel else {}
    document |= {"elastic": elastic} if elastic else {}

    (error,) = refusals(document)

    assert error.field == field
    assert error.remedy


def test_parallelism_needs_a_gang_of_one_role():
    document = whole() | {"parallel": {"batch": 32}}
    document["roles"]["chief"] = {"command": "true"}

    assert [error.field for error in refusals(document)] == ["parallel"]


def test_a_fixed_plan_has_more_replicas_on_more_devices():
    document = whole() | {"parallel": FIXED, "elastic": {**HYBRID, "max": 32}}
    document["roles"]["worker"]["devices"] = 4

    spec = parse(document)

    assert parse_stored(spec.to_json()) == spec
    parallel = spec.parallel
    assert parallel is not None
    plans = [parallel.given_plan(n) for n in (4, 8, 32)]
    assert [plan and plan.stages[0].data for plan in plans] == [4, 8, 32]
    assert parallel.given_plan(6) is None


def test_two_sources_are_one_too_many():
    source = {"git": {"url": "https://example.org/a"}, "archive": "ab" * 32}

    (error,) = refusals(whole() | {"source": source})

    assert (error.field, error.code) == ("source", "conflict")


@pytest.mark.parametrize(
    ("role", "job", "remedy"),
    [
        ({"device_types": ["T4"]}, {}, "Give either pinned_cell or device_types."),
        ({}, {"class": "opportunistic"}, "Use class: guaranteed, or omit pinned_cell."),
    ],
)
def test_a_pinned_cell_goes_neither_with_types_nor_with_opportunistic_jobs(role, job, remedy):
    worker = {"command": "true", "pinned_cell": "lab", **role}

    (error,) = refusals({"name": "a", "virtual_cluster": "v", "roles": {"worker": worker}} | job)

    assert (error.field, error.code) == ("roles.worker.pinned_cell", "conflict")
    assert (error.value, error.remedy) == ('"lab"', remedy)


def test_a_device_cell_cannot_hold_two_devices():
    role = {"command": "true", "within": "device", "devices": 2}

    (error,) = refusals(whole() | {"roles": {"worker": role}})

    assert (error.field, error.code) == ("roles.worker.within", "conflict")


@pytest.mark.parametrize(
    ("changes", "field", "code"),
    [
        ({"image_secret": "LOGIN"}, "image_secret", "conflict"),
        ({"image_secret": "LOGIN", "image": "a/b"}, "image_secret", "conflict"),
        ({"image_secret": "LOGIN", "secrets": {"LOGIN": "a:b"}}, "image_secret", "conflict"),
        (
            {"image_secret": "LOGIN", "image": "a/b", "secrets": {"LOGIN": "hunter2"}},
            "secrets.LOGIN",
            "malformed",
        ),
        ({"image_secret": "a b", "image": "a/b"}, "image_secret", "malformed"),
        ({"image_secret": 3, "image": "a/b"}, "image_secret", "wrong-type"),
    ],
)
def test_the_login_of_a_registry_is_a_secret_of_the_role(
    changes: dict[str, object], field: str, code: str
) -> None:
    found = refusals(whole() | {"roles": {"worker": {"command": "true", **changes}}})

    assert (f"roles.worker.{field}", code) in {(error.field, error.code) for error in found}
    assert "hunter2" not in str([error.to_json() for error in found])


def test_a_name_is_not_both_a_variable_and_a_secret():
    role = {"command": "true", "env": {"A": "1"}, "secrets": {"A": "hunter2"}}

    (error,) = refusals(whole() | {"roles": {"worker": role}})

    assert (error.field, error.code) == ("roles.worker.secrets.A", "conflict")
    assert "hunter2" not in str(error)


def test_all_roles_together_have_at_most_a_thousand_instances():
    roles = {name: {"command": "true", "instances": 501} for name in ("a", "b")}

    (error,) = refusals(whole() | {"roles": roles})

    assert (error.field, error.code) == ("roles", "out-of-range")


@pytest.mark.parametrize(
    ("role", "elastic", "total"),
    [
        ({"instances": 10, "ports": {"http": 100}}, None, 1000),
        ({"instances": 11, "ports": {"http": 90, "more": 1}}, None, 1001),
        ({"instances": 1, "ports": {"http": 100}}, {"min": 1, "max": 11}, 1100),
    ],
)
def test_all_instances_together_have_at_most_a_thousand_ports(role, elastic, total):
    document = {key: value for key, value in whole().items() if key != "elastic"}
    document["roles"] = {"worker": {"command": "true", **role}}
    document |= {"elastic": elastic} if elastic else {}

    if total <= 1000:
        parse(document)
        return
    (error,) = refusals(document)

    assert (error.field, error.code, error.value) == ("roles", "out-of-range", str(total))
    assert "at most 1000" in error.remedy


def test_a_stored_job_keeps_the_ports_that_it_was_accepted_with():
    role = {"command": "true", "instances": 100, "ports": {"http": 100}}

    assert parse_stored(whole() | {"roles": {"worker": role}}).roles["worker"].ports["http"] == 100


def test_a_document_is_at_most_256_kibibytes():
    roles = {f"r{i}": {"command": "x" * 60_000} for i in range(5)}

    (error,) = refusals(whole() | {"roles": roles})

    assert (error.field, error.code) == ("", "too-long")


def test_a_document_that_contains_itself_is_refused():
    document = whole()
    document["labels"] = document

    (error,) = refusals(document)

    assert error.code == "too-long"


@pytest.mark.parametrize("document", [None, [], "name: x", 3, True, b"{}", object()])
def test_what_is_no_object_is_refused(document):
    errors = refusals(document)

    assert [error.code for error in errors] == ["wrong-type"]


def test_at_most_a_hundred_errors_are_kept_and_found_quickly():
    errors = refusals(whole() | {f"unknown{i}": i for i in range(10_000)})

    assert len(errors) == MAX_ERRORS


def test_the_code_of_the_whole_tells_what_does_not_work_yet_from_what_is_wrong():
    with pytest.raises(InvalidJobSpecError) as not_yet:
        parse(whole() | {"model": {}, "held": False})
    with pytest.raises(InvalidJobSpecError) as wrong:
        parse(whole() | {"model": {}, "held": "no"})

    assert not_yet.value.code == "unsupported-field"
    assert wrong.value.code == "invalid-spec"


def test_a_refused_document_is_not_changed():
    document = whole() | {"x": [1], "model": {}}
    before = copy.deepcopy(document)

    refusals(document)

    assert document == before


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"container": {"rdma": True}, "instances": 2}, "container"),
        ({"container": {"ipc": "host", "shm": "1GiB"}, "image": "a/b"}, "container.shm"),
    ],
)
def test_settings_of_a_container_need_an_image_and_do_not_contradict(
    changes: dict[str, object], field: str
) -> None:
    (found,) = refusals(whole() | {"roles": {"worker": {"command": "true", **changes}}})

    assert (found.field, found.code) == (f"roles.worker.{field}", "conflict")
    assert found.remedy


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel": {"batch": 32}},
        {"elastic": {"mode": "hybrid", "min": 1, "max": 8}, "parallel": {"batch": 32}},
    ],
)
def test_a_parallel_plan_determines_the_processes(changes: dict[str, object]) -> None:
    role = {"command": "true", "devices": 8, "processes": "per-device"}
    (found,) = refusals({"name": "a", "virtual_cluster": "v", "roles": {"w": role}, **changes})

    assert (found.field, found.code) == ("roles.w.processes", "conflict")
    assert "tessera.train.launch" in found.remedy


def test_processes_per_device_survive_the_stored_form_and_the_default_is_omitted() -> None:
    role = {"command": "true", "devices": 8, "processes": "per-device"}
    spec = parse({"name": "a", "virtual_cluster": "v", "roles": {"w": role}})

    assert spec.to_json()["roles"]["w"]["processes"] == "per-device"
    assert parse_stored(spec.to_json()) == spec
    usual = parse({"name": "a", "virtual_cluster": "v", "roles": {"w": {"command": "true"}}})
    assert "processes" not in usual.to_json()["roles"]["w"]
