"""Facts of GPU drivers, marks of devices with an end, and logins of tenants at registries."""

import django.db.models.deletion
from django.db import migrations, models


def fill_gpu_facts(apps, schema_editor):
    """Take the facts from stored inventories: a probe that finds no change writes nothing."""
    nodes = apps.get_model("scheduling", "Node").objects
    for node in nodes.exclude(inventory={}).only("id", "inventory"):
        found = node.inventory
        memory = [
            device.get("memory_bytes") or 0
            for device in found.get("devices", ())
            if not device.get("declared")
        ]
        nodes.filter(pk=node.pk).update(
            driver_version=found.get("driver", ""),
            cuda_version=found.get("cuda", ""),
            gpu_memory_bytes=min(memory, default=0),
        )


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0010_device_sharing'),
        ('tenants', '0002_audit_triggers'),
    ]

    operations = [
        migrations.AddField(
            model_name='device',
            name='disabled_until',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='node',
            name='cuda_version',
            field=models.CharField(blank=True, default='', max_length=32),
        ),
        migrations.AddField(
            model_name='node',
            name='driver_version',
            field=models.CharField(blank=True, default='', max_length=128),
        ),
        migrations.AddField(
            model_name='node',
            name='gpu_memory_bytes',
            field=models.BigIntegerField(default=0),
        ),
        migrations.CreateModel(
            name='RegistryLogin',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('registry', models.CharField(max_length=255)),
                ('username', models.CharField(max_length=255)),
                ('sealed', models.BinaryField()),
                ('changed_at', models.DateTimeField()),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='registry_logins', to='tenants.tenant')),
            ],
            options={
                'ordering': ['tenant_id', 'registry'],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'registry'), name='registry_login_one_per_registry')],
            },
        ),
        migrations.RunPython(fill_gpu_facts, migrations.RunPython.noop),
    ]
