"""The address of a removed node, by which its host is recognised when it is added again."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0035_networks_of_nodes'),
    ]

    operations = [
        migrations.AddField(
            model_name='node',
            name='last_address',
            field=models.CharField(blank=True, default='', max_length=262),
        ),
    ]
