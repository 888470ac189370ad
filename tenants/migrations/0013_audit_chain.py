"""The hash chain over audit rows, and triggers that protect rows and chain from any client.

Rows are deleted by pruning alone: those from before the newest anchor's time, which is at least a
day past. On SQLite `INSERT OR REPLACE` deletes without firing a trigger of its own, so inserting a
key that exists is refused. On SQLite a later change of a table rebuilds it and drops its triggers:
such a migration must install these again (a test looks for them).
"""

from itertools import islice

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

TABLES = ('auditentry', 'auditlink', 'auditanchor')
# The condition on which a row may not be deleted.
KEPT = {
    'auditentry': """OLD.at >= COALESCE((SELECT MAX(before) FROM tenants_auditanchor), {never})""",
    'auditlink': """OLD.position > COALESCE((SELECT MAX(position) FROM tenants_auditanchor), 0)""",
    'auditanchor': """1 = 1""",
}
KEYS = {
    'auditentry': 'id = NEW.id',
    'auditlink': 'position = NEW.position OR entry_id = NEW.entry_id',
    'auditanchor': 'position = NEW.position',
}
REFUSED = 'audit rows are append-only'
YOUNG = 'audit rows of the last day are not pruned'


def _sqlite():
    never = "'0001-01-01'"
    for table in TABLES:
        refuse = f"BEGIN SELECT RAISE(ABORT, '{REFUSED}'); END"
        on = f"ON tenants_{table}"
        yield f"CREATE TRIGGER tenants_{table}_kept BEFORE DELETE {on} WHEN {KEPT[table].format(never=never)} {refuse}"
        yield (
            f"CREATE TRIGGER tenants_{table}_not_replaced BEFORE INSERT {on} "
            f"WHEN EXISTS (SELECT 1 FROM tenants_{table} WHERE {KEYS[table]}) {refuse}"
        )
        if table != 'auditentry':
            yield f"CREATE TRIGGER tenants_{table}_append_only BEFORE UPDATE {on} {refuse}"
    yield (
        "CREATE TRIGGER tenants_auditanchor_past BEFORE INSERT ON tenants_auditanchor "
        "WHEN julianday('now') - julianday(NEW.before) < 0.999 "
        f"BEGIN SELECT RAISE(ABORT, '{YOUNG}'); END"
    )


def _postgresql():
    never = "'-infinity'::timestamptz"
    for table in TABLES:
        yield f"""
CREATE FUNCTION tenants_{table}_keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF {KEPT[table].format(never=never)} THEN
        RAISE EXCEPTION '{REFUSED}' USING ERRCODE = 'check_violation';
    END IF;
    RETURN OLD;
END $$"""
        on = f"ON tenants_{table} FOR EACH ROW EXECUTE FUNCTION"
        yield f"CREATE TRIGGER tenants_{table}_kept BEFORE DELETE {on} tenants_{table}_keep()"
        if table != 'auditentry':
            yield (
                f"CREATE TRIGGER tenants_{table}_append_only BEFORE UPDATE {on} "
                "tenants_auditentry_refuse_update()"
            )
    yield f"""
CREATE FUNCTION tenants_auditanchor_check() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF clock_timestamp() - NEW.before < interval '23 hours 58 minutes' THEN
        RAISE EXCEPTION '{YOUNG}' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$"""
    yield (
        "CREATE TRIGGER tenants_auditanchor_past BEFORE INSERT ON tenants_auditanchor "
        "FOR EACH ROW EXECUTE FUNCTION tenants_auditanchor_check()"
    )


def install(apps, schema_editor):
    statements = _sqlite() if schema_editor.connection.vendor == 'sqlite' else _postgresql()
    for statement in statements:
        schema_editor.execute(statement, params=None)


def remove(apps, schema_editor):
    is_sqlite = schema_editor.connection.vendor == 'sqlite'
    for table in TABLES:
        names = ['kept', *(['not_replaced'] if is_sqlite else [])]
        names += ['append_only'] if table != 'auditentry' else []
        names += ['past'] if table == 'auditanchor' else []
        for name in names:
            on = '' if is_sqlite else f' ON tenants_{table}'
            schema_editor.execute(f'DROP TRIGGER tenants_{table}_{name}{on}')
        if not is_sqlite:
            schema_editor.execute(f'DROP FUNCTION tenants_{table}_keep()')
    if not is_sqlite:
        schema_editor.execute('DROP FUNCTION tenants_auditanchor_check()')


def link_all(apps, schema_editor):
    """Link the rows that are there, in the order of their keys."""
    from tenants.audit_chain import GENESIS, link_hash

    entries = apps.get_model('tenants', 'AuditEntry')._base_manager
    links = apps.get_model('tenants', 'AuditLink').objects
    names = [field.attname for field in entries.model._meta.concrete_fields]
    rows = enumerate(entries.order_by('pk').values(*names).iterator(chunk_size=1000), 1)
    last = GENESIS
    while batch := list(islice(rows, 1000)):
        made = []
        for position, values in batch:
            last = link_hash(last, position, values)
            made.append(links.model(position=position, entry_id=values['id'], hash=last))
        links.bulk_create(made)


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0012_unix_users_of_existing_tenants'),
    ]

    operations = [
        migrations.CreateModel(
            name='AuditAnchor',
            fields=[
                ('position', models.BigIntegerField(primary_key=True, serialize=False)),
                ('hash', models.CharField(max_length=64)),
                ('before', models.DateTimeField()),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('position__gt', 0)), name='auditanchor_position_positive')],
            },
        ),
        migrations.CreateModel(
            name='AuditLink',
            fields=[
                ('position', models.BigIntegerField(primary_key=True, serialize=False)),
                ('hash', models.CharField(max_length=64)),
                ('entry', models.OneToOneField(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.auditentry')),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('position__gt', 0)), name='auditlink_position_positive')],
            },
        ),
        migrations.RunPython(link_all, migrations.RunPython.noop),
        migrations.RunPython(install, remove),
    ]
