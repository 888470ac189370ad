"""What a job specification is once it has been read."""

import copy
from datetime import UTC, datetime

import pytest

from scheduling.core.jobspec import (
    REDACTED,
    ArchiveSource,
    Completion,
    Demand,
    GitSource,
    InvalidJobSpecError,
    JobClass,
    MemberDemand,
    Within,
    demand,
    parse,
    parse_stored,
)
from scheduling.core.lifecycle import FailureClass

SMALLEST = {
    "name": "hello",
    "virtual_cluster": "vision-a",
    "roles": {"worker": {"instances": 1, "devices": 1, "command": "echo hello"}},
}


def job(**changes):
    return {**copy.deepcopy(SMALLEST), **changes}


def job_with_role(**changes):
    return job(roles={"worker": {"command": "true", **changes}})


def worker(**changes):
    return parse(job_with_role(**changes)).roles["worker"]


def test_the_smallest_job_has_all_defaults_written_out():
    spec = parse(SMALLEST)

    assert spec.to_json() == {
        "schema_version": 1,
        "name": "hello",
        "virtual_cluster": "vision-a",
        "class": "guaranteed",
        "roles": {
            "worker": {
                "instances": 1,
                "devices": 1,
                "within": "node",
                "command": "echo hello",
                "completion": {"min_failed": 1, "min_succeeded": -1},
            }
        },
        "gang": True,
        "held": False,
        "retries": {
            "user": 0,
            "resource-limit": 0,
            "node": 3,
            "image": 2,
            "preempted": -1,
            "timeout": 0,
            "platform": 3,
        },
        "grace_seconds": 30,
    }


def test_a_document_that_says_everything_is_read_field_by_field():
    spec = parse(
        {
            "schema_version": 1,
            "name": "n",
            "note": "two\nlines",
            "labels": {"example.com/team": "視覚", "empty": ""},
            "virtual_cluster": "vision-a",
            "priority": 1000,
            "class": "opportunistic",
            "roles": {
                "worker": {
                    "instances": 4,
                    "devices": 2,
                    "device_types": ["A100", "V100"],
                    "within": "socket",
                    "cpus": 0.5,
                    "memory": "8GiB",
                    "command": "true",
                    "image": "reg.example.org:5000/team/train:1.2",
                    "env": {"A": "1"},
                    "secrets": {"TOKEN": "s"},
                    "ports": {"http": 2},
                    "completion": {"min_failed": -1, "min_succeeded": 3},
                }
            },
            "gang": True,
            "max_duration": "1d2h30m",
            "not_before": "2030-05-01T08:00:00+02:00",
            "held": True,
            "after": [17, 18],
            "retries": {"user": 1, "resource-limit": 2, "timeout": -1},
            "grace_seconds": "2m",
            "source": {"git": {"url": "https://example.org/a.git", "ref": "main"}},
        }
    )

    role = spec.roles["worker"]
    assert spec.labels == {"example.com/team": "視覚", "empty": ""}
    assert (spec.priority, spec.job_class) == (1000, JobClass.OPPORTUNISTIC)
    assert (role.instances, role.devices, role.device_types) == (4, 2, ("A100", "V100"))
    assert (role.within, role.cpus, role.memory) == (Within.SOCKET, 0.5, 8 * 2**30)
    assert role.image == "reg.example.org:5000/team/train:1.2"
    assert (role.env, role.secrets, role.ports) == ({"A": "1"}, {"TOKEN": "s"}, {"http": 2})
    assert role.completion == Completion(min_failed=-1, min_succeeded=3)
    assert spec.max_duration == 95_400
    assert spec.not_before == datetime(2030, 5, 1, 6, tzinfo=UTC)
    assert (spec.held, spec.after, spec.grace_seconds) == (True, (17, 18), 120)
    assert spec.source == GitSource(url="https://example.org/a.git", ref="main")
    assert spec.retries.of(FailureClass.RESOURCE_LIMIT) == 2


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(90, 90), ("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86_400), ("1h30m", 5400)],
)
def test_durations_are_read_in_seconds(given, seconds):
    assert parse(job(max_duration=given)).max_duration == seconds


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (2**30, 2**30),
        ("8GB", 8 * 10**9),
        ("8GiB", 8 * 2**30),
        ("8 gib", 8 * 2**30),
        ("1.5GiB", 3 * 2**29),
        ("2048KiB", 2**21),
        ("1TiB", 2**40),
    ],
)
def test_memory_is_read_in_bytes(given, size):
    assert worker(memory=given).memory == size


@pytest.mark.parametrize(
    "text",
    [
        'it\'s "quoted"',
        "$(touch /tmp/x) `id` ; rm -rf / && || | > <",
        "日本語 العربية 👩‍💻 é",
        "<script>alert(1)</script>",
        "--option -x",
        "%s {0} ${HOME} \\n \\",
        "a" * 63,
    ],
)
def test_names_notes_labels_and_commands_are_carried_literally(text):
    spec = parse(
        job(
            name=text,
            note=text,
            labels={"l": text},
            roles={"worker": {"command": text, "env": {"E": text}, "secrets": {"S": text}}},
        )
    )
    again = parse(spec.to_json(include_secrets=True))

    for each in (spec, again):
        role = each.roles["worker"]
        assert {each.name, each.note, each.labels["l"], role.command} == {text}
        assert (role.env["E"], role.secrets["S"]) == (text, text)


@pytest.mark.parametrize(
    "text", ["a\nb\r\n\tc\n", " leading and trailing \n\n", "\x1b[31m\x07", "\n x"]
)
def test_commands_and_variables_keep_their_white_space_and_control_characters(text):
    role = worker(command=text, env={"E": text})

    assert role.command == text
    assert role.env["E"] == text


def test_roles_come_in_order_of_their_names_whatever_the_document_says():
    roles = {name: {"command": "true"} for name in ("worker", "chief", "ps")}

    assert list(parse(job(roles=roles)).roles) == ["chief", "ps", "worker"]


def test_null_counts_as_not_given():
    assert parse(job(note=None, source=None, elastic=None, priority=None)) == parse(SMALLEST)


def test_any_device_type_is_the_same_as_none():
    assert worker(device_types="any").device_types == ()
    assert worker(device_types=["any"]).device_types == ()
    assert worker(device_types="A100").device_types == ("A100",)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a.git",
        "https://example.org:8443/a/b/c",
        "ssh://git@example.org/a.git",
        "ssh://git@example.org:22/a",
        "ssh://example.org/~alice/a",
        "https://[::1]/a",
        "git@example.org:team/repo.git",
        "alice_b@10.0.0.1:/srv/repo",
    ],
)
def test_git_addresses_over_https_and_ssh_are_taken(url):
    assert parse(job(source={"git": {"url": url}})).source == GitSource(url=url)


def test_an_archive_is_named_by_its_digest():
    assert parse(job(source={"archive": "0a" * 32})).source == ArchiveSource(digest="0a" * 32)


def test_secrets_are_left_out_unless_asked_for():
    spec = parse(job_with_role(secrets={"TOKEN": "hunter2"}))

    assert "hunter2" not in repr(spec)
    assert "hunter2" not in str(spec.to_json())
    assert "hunter2" not in repr(spec.redacted())
    assert spec.to_json()["roles"]["worker"]["secrets"] == {"TOKEN": REDACTED}
    assert spec.to_json(include_secrets=True)["roles"]["worker"]["secrets"] == {"TOKEN": "hunter2"}


def test_a_stored_job_gets_its_secrets_back():
    spec = parse(job_with_role(secrets={"TOKEN": "hunter2"}))

    stored = parse_stored(spec.to_json())

    assert stored == spec.redacted()
    assert stored.with_secrets(spec.secrets()) == spec


def test_a_redacted_secret_cannot_be_submitted_again():
    spec = parse(job_with_role(secrets={"TOKEN": "hunter2"}))

    with pytest.raises(InvalidJobSpecError) as refused:
        parse(spec.to_json())

    assert [error.field for error in refused.value.errors] == ["roles.worker.secrets.TOKEN"]
    assert "again" in refused.value.errors[0].remedy


def test_values_cannot_be_changed_after_they_were_read():
    spec = parse(job_with_role(env={"A": "1"}))

    with pytest.raises(TypeError):
        spec.roles["worker"].env["A"] = "2"  # type: ignore[index]  # it is read-only
    with pytest.raises(AttributeError):
        spec.name = "other"  # type: ignore[misc]  # it is read-only


def test_the_document_is_not_changed():
    document = job(labels={"a": "b"})
    before = copy.deepcopy(document)

    parse(document)

    assert document == before


def test_retries_are_granted_by_class_of_failure():
    retries = parse(job(retries={"user": 1, "node": 0})).retries

    assert retries.allows(FailureClass.USER, used=0)
    assert not retries.allows(FailureClass.USER, used=1)
    assert not retries.allows(FailureClass.NODE, used=0)
    assert retries.allows(FailureClass.PREEMPTED, used=10_000)


def test_the_demand_is_what_the_roles_ask_for():
    spec = parse(
        job(
            roles={
                "worker": {
                    "command": "true",
                    "instances": 3,
                    "devices": 4,
                    "cpus": 2,
                    "memory": "1GiB",
                },
                "chief": {
                    "command": "true",
                    "device_types": ["T4"],
                    "within": "device",
                    "image": "a",
                },
            }
        )
    )

    asked = demand(spec)

    assert asked.members == (
        MemberDemand(
            role="chief",
            count=1,
            devices=1,
            device_types=("T4",),
            within=Within.DEVICE,
            image=True,
        ),
        MemberDemand(role="worker", count=3, devices=4, cpus=2.0, memory=2**30),
    )
    assert (asked.instances, asked.devices, asked.cpus, asked.memory) == (4, 13, 6.0, 3 * 2**30)
    assert asked.needs_image


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"members": 3},
        {"members": [[1, 2]]},
        {"members": [["a", 1, 1, [], "x", 0, 0, 0]]},
        {"members": [["a", 1, 1, [], "node", 0, 0, 0, "lab", "more"]]},
        {"members": [["a", 1, 1, [], "node", 0, 0, 0, "lab", 1, 2]]},
    ],
)
def test_a_demand_that_is_none_is_refused(document):
    with pytest.raises(ValueError, match="not the demand of a job"):
        Demand.from_json(document)


def test_a_pinned_cell_is_in_the_document_and_in_the_demand_and_tells_demands_apart():
    pinned = parse(job(roles={"worker": {"command": "true", "pinned_cell": "lab 1"}}))
    plain = parse(job(roles={"worker": {"command": "true"}}))

    asked = demand(pinned)

    assert parse(pinned.to_json()) == pinned
    assert Demand.from_json(asked.to_json()) == asked
    assert asked.members[0].pinned_cell == "lab 1"
    assert demand(plain).members[0].pinned_cell is None
    assert asked != demand(plain)


def test_ports_are_in_the_demand_with_a_pinned_cell_and_without():
    roles = {
        "chief": {"command": "true", "ports": {"http": 2, "ssh": 1}},
        "worker": {"command": "true", "ports": {"http": 1}, "pinned_cell": "lab 1"},
    }

    asked = demand(parse(job(roles=roles)))

    assert Demand.from_json(asked.to_json()) == asked
    assert [(one.pinned_cell, one.ports) for one in asked.members] == [(None, 3), ("lab 1", 1)]


def test_a_demand_that_was_stored_before_there_were_pinned_cells_has_none():
    stored = {"members": [["worker", 1, 2, [], "node", None, None, False]]}

    asked = Demand.from_json(stored)

    assert asked == Demand(members=(MemberDemand(role="worker", count=1, devices=2),))
    assert asked.to_json() == stored


@pytest.mark.parametrize(
    ("instances", "devices", "elastic", "bounds"),
    [
        (1, 4, {}, (4, 4)),
        (1, 4, {"min": 1}, (1, 4)),
        (2, 4, {"min": 4, "max": 16}, (4, 16)),
        (1, 4, {"min": 1, "max": 64}, (1, 64)),
    ],
)
def test_elastic_bounds_go_around_the_size_that_is_asked_for(instances, devices, elastic, bounds):
    spec = parse(
        job(roles={"worker": {"command": "true", "instances": instances, "devices": devices}})
        | {"elastic": elastic}
    )

    assert spec.elastic is not None
    assert spec.elastic.bounds(instances * devices) == bounds
    assert parse(spec.to_json()) == spec


def test_sizes_without_a_shape_are_refused():
    six = {"worker": {"command": "true", "instances": 1, "devices": 6}}
    two = {"worker": {"command": "true"}, "ps": {"command": "true"}}
    for document in (
        job(roles=six, elastic={"min": 2, "max": 12}),
        job(roles=two, elastic={"max": 4}),
        job(gang=False, elastic={"max": 4}),
    ):
        with pytest.raises(InvalidJobSpecError) as refused:
            parse(document)

        assert [(e.field, e.code) for e in refused.value.errors] == [("elastic", "conflict")]


LOGICAL = {"mode": "logical_workers", "logical_workers": 8, "determinism": "D2", "epochs": 3}
ADAPTIVE = {"mode": "adaptive_batch", "initial_batch": 128, "max_batch": 1024, "total_steps": 500}


@pytest.mark.parametrize("said", [{"mode": "fixed"}, LOGICAL, ADAPTIVE])
def test_ways_of_training_elastically_are_kept_as_they_were_said(said):
    spec = parse(job(elastic=said))

    assert spec.elastic is not None
    assert {name: getattr(spec.elastic, name) for name in said} == said
    assert parse(spec.to_json()) == parse_stored(spec.to_json()) == spec


def test_a_device_takes_the_largest_batch_unless_less_is_reported():
    most = [parse(job(elastic=ADAPTIVE | more)).elastic for more in ({}, {"max_local_batch": 64})]

    assert [one.max_local_batch for one in most if one] == [1024, 64]


@pytest.mark.parametrize(
    ("said", "field", "code"),
    [
        ({"mode": "logical_workers"}, "elastic.logical_workers", "missing-field"),
        (LOGICAL | {"logical_workers": 3, "max": 4}, "elastic.logical_workers", "conflict"),
        (LOGICAL | {"max_batch": 4}, "elastic.max_batch", "conflict"),
        (LOGICAL | {"total_steps": 4}, "elastic.epochs", "conflict"),
        ({"mode": "adaptive_batch", "max_batch": 4}, "elastic.initial_batch", "missing-field"),
        (ADAPTIVE | {"max_batch": 64}, "elastic.max_batch", "conflict"),
        (ADAPTIVE | {"max_local_batch": 2048}, "elastic.max_local_batch", "conflict"),
        (ADAPTIVE | {"determinism": "D1"}, "elastic.determinism", "conflict"),
    ],
)
def test_what_does_not_go_with_a_way_of_training_is_refused_by_name(said, field, code):
    worker = {"worker": {"command": "true", "devices": 4}}

    with pytest.raises(InvalidJobSpecError) as refused:
        parse(job(roles=worker, elastic=said))

    assert [(error.field, error.code) for error in refused.value.errors] == [(field, code)]
