"""Refuse TRUNCATE of audit rows on PostgreSQL, where it fires no trigger of rows.

An empty table may be truncated, which changes nothing. SQLite has no such statement.
"""

from django.db import migrations

TABLES = ('auditentry', 'auditlink', 'auditanchor')


def install(apps, schema_editor):
    if schema_editor.connection.vendor != 'postgresql':
        return
    for table in TABLES:
        schema_editor.execute(
            f"""
CREATE FUNCTION tenants_{table}_refuse_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM tenants_{table}) THEN
        RAISE EXCEPTION 'audit rows are append-only' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$""",
            params=None,
        )
        schema_editor.execute(
            f"CREATE TRIGGER tenants_{table}_not_truncated BEFORE TRUNCATE ON tenants_{table} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION tenants_{table}_refuse_truncate()",
            params=None,
        )


def remove(apps, schema_editor):
    if schema_editor.connection.vendor != 'postgresql':
        return
    for table in TABLES:
        schema_editor.execute(
            f'DROP TRIGGER tenants_{table}_not_truncated ON tenants_{table}', params=None
        )
        schema_editor.execute(f'DROP FUNCTION tenants_{table}_refuse_truncate()', params=None)


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0015_floor_of_user_ids'),
    ]

    operations = [
        migrations.RunPython(install, remove),
    ]
