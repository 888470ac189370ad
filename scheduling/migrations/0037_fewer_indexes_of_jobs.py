"""Drop indexes of jobs and events that are the beginning of another one, and entries of NULL.

Every submit and every event wrote to each of them. ``AlterField`` would copy both tables on SQLite,
so the indexes are dropped by name; Django derives the names from table and column alone.
"""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

DROPPED = (
    ('scheduling_job_tenant_id_942c35b5', 'scheduling_job', 'tenant_id'),
    ('scheduling_job_virtual_cluster_id_106da895', 'scheduling_job', 'virtual_cluster_id'),
    ('scheduling_job_owner_id_b8fb9207', 'scheduling_job', 'owner_id'),
    ('scheduling_job_cloned_from_id_c57829c1', 'scheduling_job', 'cloned_from_id'),
    ('scheduling_jobevent_job_id_1b3e1f4c', 'scheduling_jobevent', 'job_id'),
)


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0036_last_address_of_removed_nodes'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    f'DROP INDEX IF EXISTS "{name}"',
                    f'CREATE INDEX "{name}" ON "{table}" ("{column}")',
                )
                for name, table, column in DROPPED
            ],
            state_operations=[
                migrations.AlterField(
                    model_name='job',
                    name='tenant',
                    field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to='tenants.tenant'),
                ),
                migrations.AlterField(
                    model_name='job',
                    name='virtual_cluster',
                    field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to='scheduling.virtualcluster'),
                ),
                migrations.AlterField(
                    model_name='job',
                    name='owner',
                    field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to=settings.AUTH_USER_MODEL),
                ),
                migrations.AlterField(
                    model_name='job',
                    name='cloned_from',
                    field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='clones', to='scheduling.job'),
                ),
                migrations.AlterField(
                    model_name='jobevent',
                    name='job',
                    field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='events', to='scheduling.job'),
                ),
            ],
        ),
        migrations.RemoveIndex(model_name='job', name='job_first_started'),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('first_started_at__isnull', False)), fields=['first_started_at'], name='job_first_started'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('cloned_from__isnull', False)), fields=['cloned_from'], name='job_cloned_from'),
        ),
    ]
