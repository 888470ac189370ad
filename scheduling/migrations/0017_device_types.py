"""Memory of the GPUs of nodes with several device types, and types with NVLink."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0016_sweep_objectives"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="type_memory",
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name="node",
            name="nvlink_types",
            field=models.JSONField(blank=True, default=list),
        ),
    ]
