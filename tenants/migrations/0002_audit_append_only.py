"""Refuse updates of audit rows in the database itself, whoever sends them.

Deletion stays possible, for pruning. On SQLite a later change of the table rebuilds it and drops
its triggers: such a migration must install this one again (a test looks for it).
"""

from django.db import migrations

SQLITE = """
CREATE TRIGGER tenants_auditentry_append_only BEFORE UPDATE ON tenants_auditentry
BEGIN SELECT RAISE(ABORT, 'audit rows are append-only'); END
"""
POSTGRES_FUNCTION = """
CREATE FUNCTION tenants_auditentry_refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'audit rows are append-only' USING ERRCODE = 'check_violation'; END $$
"""
POSTGRES_TRIGGER = """
CREATE TRIGGER tenants_auditentry_append_only BEFORE UPDATE ON tenants_auditentry
FOR EACH ROW EXECUTE FUNCTION tenants_auditentry_refuse_update()
"""


def install(apps, schema_editor):
    if schema_editor.connection.vendor == "sqlite":
        schema_editor.execute(SQLITE)
    else:
        schema_editor.execute(POSTGRES_FUNCTION)
        schema_editor.execute(POSTGRES_TRIGGER)


def remove(apps, schema_editor):
    if schema_editor.connection.vendor == "sqlite":
        schema_editor.execute("DROP TRIGGER tenants_auditentry_append_only")
    else:
        schema_editor.execute(
            "DROP TRIGGER tenants_auditentry_append_only ON tenants_auditentry"
        )
        schema_editor.execute("DROP FUNCTION tenants_auditentry_refuse_update()")


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_initial")]
    operations = [migrations.RunPython(install, remove)]
