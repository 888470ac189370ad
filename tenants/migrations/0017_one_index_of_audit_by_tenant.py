"""Drop the index of audit rows by tenant that is the beginning of another one.

``AlterField`` would copy the table on SQLite and lose its triggers, so the index is dropped by
name; Django derives the name from table and column alone.
"""

import django.db.models.deletion
from django.db import migrations, models

NAME = 'tenants_auditentry_tenant_id_65c2d4a0'


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0016_audit_not_truncated'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    f'DROP INDEX IF EXISTS "{NAME}"',
                    f'CREATE INDEX "{NAME}" ON "tenants_auditentry" ("tenant_id")',
                ),
            ],
            state_operations=[
                migrations.AlterField(
                    model_name='auditentry',
                    name='tenant',
                    field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.tenant'),
                ),
            ],
        ),
    ]
