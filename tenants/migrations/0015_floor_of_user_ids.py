"""Unix user ids that are not given again after a restore."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0014_time_zone_of_the_browser'),
    ]

    operations = [
        migrations.CreateModel(
            name='UidFloor',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uid', models.PositiveIntegerField()),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('id', 1)), name='uidfloor_is_one_row')],
            },
        ),
    ]
