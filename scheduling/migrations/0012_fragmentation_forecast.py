"""Forecast of stranded devices."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("scheduling", "0011_gpu_facts_and_registry_logins"),
    ]

    operations = [
        migrations.CreateModel(
            name='FragmentationForecast',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('round_number', models.PositiveBigIntegerField()),
                ('made_at', models.DateTimeField()),
                ('result', models.JSONField(default=dict)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('id', 1)), name='fragmentation_forecast_is_one_row')],
            },
        ),
    ]
