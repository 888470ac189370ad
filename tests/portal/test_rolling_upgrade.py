"""Two versions at once: migrations only expand, and messages of the previous version work."""

import inspect
from collections.abc import Mapping
from typing import Any

import pytest
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

from portal.celery import app
from portal.migration_rules import (
    RELEASE,
    RELEASED,
    RELEASED_PROTOCOLS,
    migrations_since_release,
    oldest_release,
    violations,
)
from tessera import protocol
from tessera.protocol import RunSpec
from tests.support.transport_runs import run_spec

MESSAGES: Mapping[str, Mapping[str, Any]] = {
    "scheduling.tasks.run_round": {"cause": "submit"},
    "scheduling.tasks.decide_shadows": {"number": 7},
    "scheduling.tasks.answer_what_if": {"pk": 7},
    "scheduling.tasks.estimate_starts": {},
    "scheduling.tasks.estimate_new_waits": {},
    "workers.tasks.notify": {},
    "portal.tasks.run_maintenance": {},
}
"""Messages as the previous release sends them; a release removes none that may be in a queue."""


@pytest.mark.parametrize("app_label", sorted(RELEASED))
def test_the_previous_release_works_with_the_tables_of_this_one(app_label: str) -> None:
    found = violations(migrations_since_release(app_label))

    assert not found, "\n".join(map(str, found))


def made(*operations: Operation, **reasons: str) -> migrations.Migration:
    body = {"operations": list(operations), **reasons}
    return type("Migration", (migrations.Migration,), body)("0099_test", "scheduling")


NEW = migrations.CreateModel("Fresh", [("id", models.BigAutoField(primary_key=True))])
REFUSED = {
    "a dropped column": migrations.RemoveField("job", "name"),
    "a renamed column": migrations.RenameField("job", "name", "title"),
    "a dropped table": migrations.DeleteModel("Job"),
    "a renamed table": migrations.RenameModel("Job", "Task"),
    "another name of the table": migrations.AlterModelTable("job", "jobs"),
    "a required column": migrations.AddField("job", "extra", models.IntegerField()),
    "a default of Python only": migrations.AddField(
        "job", "extra", models.IntegerField(default=1)
    ),
    "a stricter column": migrations.AlterField("job", "name", models.CharField(max_length=10)),
    "a new constraint": migrations.AddConstraint(
        "job", models.CheckConstraint(condition=models.Q(name="x"), name="x")
    ),
    "statements": migrations.RunSQL("DROP TABLE scheduling_job"),
    "a hidden operation": migrations.SeparateDatabaseAndState(
        database_operations=[migrations.RemoveField("job", "name")]
    ),
}


@pytest.mark.parametrize("operation", REFUSED.values(), ids=REFUSED)
def test_a_change_that_the_previous_release_does_not_survive_is_refused(
    operation: Operation,
) -> None:
    (found,) = violations([made(operation)])

    assert found.migration == "scheduling.0099_test"
    contracting = made(operation, contracts="unused since the previous release")
    pausing = made(operation, needs_pause="the previous release writes it")
    assert violations([contracting]) == violations([pausing]) == []


def test_only_a_migration_that_needs_a_pause_excludes_the_previous_release() -> None:
    drop = migrations.RemoveField("job", "name")

    assert oldest_release([made(drop, contracts="unused"), made(NEW)]) == RELEASE - 1
    assert oldest_release([made(drop, needs_pause="used"), made(NEW)]) == RELEASE


ALLOWED = {
    "a new table": [NEW],
    "a new table that changes": [
        NEW,
        migrations.AddField("fresh", "x", models.IntegerField()),
        migrations.RemoveField("fresh", "x"),
        migrations.DeleteModel("Fresh"),
    ],
    "an empty column": [migrations.AddField("job", "x", models.IntegerField(null=True))],
    "a default of the database": [
        migrations.AddField("job", "x", models.IntegerField(db_default=0)),
        migrations.RenameField("job", "x", "y"),
        migrations.RemoveField("job", "y"),
    ],
    "an index": [migrations.AddIndex("job", models.Index(fields=["name"], name="i"))],
    "a dropped constraint": [migrations.RemoveConstraint("job", "x")],
    "a wider column": [migrations.AlterField("job", "x", models.IntegerField(null=True))],
}


@pytest.mark.parametrize("operations", ALLOWED.values(), ids=ALLOWED)
def test_a_change_that_only_expands_is_allowed(operations: list[Operation]) -> None:
    assert violations([made(*operations)]) == []


@pytest.mark.parametrize("name", MESSAGES)
def test_a_task_accepts_the_message_of_the_previous_release(name: str) -> None:
    app.loader.import_default_modules()

    inspect.signature(app.tasks[name].run).bind(**MESSAGES[name])


def test_every_periodic_task_is_sent_without_arguments_that_could_change(settings: Any) -> None:
    app.loader.import_default_modules()
    for entry in settings.CELERY_BEAT_SCHEDULE.values():
        inspect.signature(app.tasks[entry["task"]].run).bind()


def test_node_programs_of_both_releases_understand_the_specs_of_both() -> None:
    sent, newest = RELEASED_PROTOCOLS

    assert protocol.OLDEST_VERSION <= sent <= protocol.PROTOCOL_VERSION
    assert newest >= protocol.SENT_VERSION
    assert run_spec("true").to_json()["protocol"] == protocol.SENT_VERSION


def test_a_run_of_the_previous_protocol_is_accepted_and_an_unknown_one_is_not() -> None:
    run = {**run_spec("true").to_json(), "protocol": protocol.PROTOCOL_VERSION - 1}
    assert RunSpec.from_json(run).protocol == protocol.PROTOCOL_VERSION - 1
    with pytest.raises(protocol.ProtocolError):
        RunSpec.from_json({**run, "protocol": protocol.PROTOCOL_VERSION + 1})
