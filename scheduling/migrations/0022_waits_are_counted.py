from django.db import migrations, models
import django.db.models.deletion


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0021_losses_over_a_run'),
    ]

    operations = [
        migrations.CreateModel(
            name='WaitTally',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('wait_class', models.PositiveSmallIntegerField()),
                ('count', models.PositiveBigIntegerField(default=0)),
                ('seconds', models.FloatField(default=0)),
                ('virtual_cluster', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='waits', to='scheduling.virtualcluster')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('virtual_cluster', 'wait_class'), name='wait_tally_one_per_class'), models.CheckConstraint(condition=models.Q(('count__gte', 0), ('seconds__gte', 0)), name='wait_tally_counts_up')],
            },
        ),
    ]
