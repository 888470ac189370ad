"""Triggers that protect the audit rows and their hash chain against every client.

- UPDATE is always refused, and so is TRUNCATE (PostgreSQL) unless the table is empty.
- DELETE is refused unless pruning has stored an anchor: rows before the newest anchor's time may
  go. An anchor's time is at least a day in the past.
- SQLite: ``INSERT OR REPLACE`` deletes rows without firing the DELETE trigger, so an INSERT with
  an existing key is refused. A migration that alters one of these tables makes SQLite rebuild the
  table and drop its triggers: it must install them again (a test checks that they exist).
"""

from django.db import migrations

TABLES = ('auditentry', 'auditlink', 'auditanchor')
DELETE_REFUSED_IF = {
    'auditentry': 'OLD.at >= COALESCE((SELECT MAX(before) FROM tenants_auditanchor), {earliest})',
    'auditlink': 'OLD.position > COALESCE((SELECT MAX(position) FROM tenants_auditanchor), 0)',
    'auditanchor': '1 = 1',
}
SAME_KEY = {
    'auditentry': 'id = NEW.id',
    'auditlink': 'position = NEW.position OR entry_id = NEW.entry_id',
    'auditanchor': 'position = NEW.position',
}
APPEND_ONLY = 'audit rows are append-only'
TOO_RECENT = 'audit rows of the last day are not pruned'


def install(apps, schema_editor):
    is_sqlite = schema_editor.connection.vendor == 'sqlite'
    for statement in _sqlite() if is_sqlite else _postgresql():
        schema_editor.execute(statement, params=None)


def remove(apps, schema_editor):
    is_sqlite = schema_editor.connection.vendor == 'sqlite'
    for table in TABLES:
        kinds = ['append_only', 'kept', 'not_replaced' if is_sqlite else 'not_truncated']
        kinds += ['past'] if table == 'auditanchor' else []
        for kind in kinds:
            on = '' if is_sqlite else f' ON tenants_{table}'
            schema_editor.execute(f'DROP TRIGGER tenants_{table}_{kind}{on}')
        if not is_sqlite:
            schema_editor.execute(f'DROP FUNCTION tenants_{table}_keep()')
            schema_editor.execute(f'DROP FUNCTION tenants_{table}_refuse_truncate()')
    if not is_sqlite:
        schema_editor.execute('DROP FUNCTION tenants_auditanchor_check()')
        schema_editor.execute('DROP FUNCTION tenants_auditentry_refuse_update()')


def _sqlite():
    refuse = f"BEGIN SELECT RAISE(ABORT, '{APPEND_ONLY}'); END"
    for table in TABLES:
        on = f'ON tenants_{table}'
        condition = DELETE_REFUSED_IF[table].format(earliest="'0001-01-01'")
        yield f'CREATE TRIGGER tenants_{table}_append_only BEFORE UPDATE {on} {refuse}'
        yield f'CREATE TRIGGER tenants_{table}_kept BEFORE DELETE {on} WHEN {condition} {refuse}'
        yield (
            f'CREATE TRIGGER tenants_{table}_not_replaced BEFORE INSERT {on} '
            f'WHEN EXISTS (SELECT 1 FROM tenants_{table} WHERE {SAME_KEY[table]}) {refuse}'
        )
    yield (
        'CREATE TRIGGER tenants_auditanchor_past BEFORE INSERT ON tenants_auditanchor '
        "WHEN julianday('now') - julianday(NEW.before) < 0.999 "
        f"BEGIN SELECT RAISE(ABORT, '{TOO_RECENT}'); END"
    )


def _postgresql():
    yield _function('auditentry_refuse_update', _exception(APPEND_ONLY))
    for table in TABLES:
        on = f'ON tenants_{table} FOR EACH ROW EXECUTE FUNCTION'
        condition = DELETE_REFUSED_IF[table].format(earliest="'-infinity'::timestamptz")
        yield _function(f'{table}_keep', _exception(APPEND_ONLY, condition), returns='OLD')
        yield _function(
            f'{table}_refuse_truncate',
            _exception(APPEND_ONLY, f'EXISTS (SELECT 1 FROM tenants_{table})'),
            returns='NULL',
        )
        yield (
            f'CREATE TRIGGER tenants_{table}_append_only BEFORE UPDATE {on} '
            'tenants_auditentry_refuse_update()'
        )
        yield f'CREATE TRIGGER tenants_{table}_kept BEFORE DELETE {on} tenants_{table}_keep()'
        yield (
            f'CREATE TRIGGER tenants_{table}_not_truncated BEFORE TRUNCATE ON tenants_{table} '
            f'FOR EACH STATEMENT EXECUTE FUNCTION tenants_{table}_refuse_truncate()'
        )
    young = "clock_timestamp() - NEW.before < interval '23 hours 58 minutes'"
    yield _function('auditanchor_check', _exception(TOO_RECENT, young), returns='NEW')
    yield (
        'CREATE TRIGGER tenants_auditanchor_past BEFORE INSERT ON tenants_auditanchor '
        'FOR EACH ROW EXECUTE FUNCTION tenants_auditanchor_check()'
    )


def _function(name, body, returns=None):
    end = f' RETURN {returns};' if returns else ''
    return (
        f'CREATE FUNCTION tenants_{name}() RETURNS trigger LANGUAGE plpgsql AS $$\n'
        f'BEGIN {body}{end} END $$'
    )


def _exception(message, condition=None):
    statement = f"RAISE EXCEPTION '{message}' USING ERRCODE = 'check_violation';"
    return f'IF {condition} THEN {statement} END IF;' if condition else statement


class Migration(migrations.Migration):
    dependencies = [('tenants', '0001_initial')]

    operations = [migrations.RunPython(install, remove)]
