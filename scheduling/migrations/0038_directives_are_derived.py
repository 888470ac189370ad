"""Drop the table of directives: they are derived from the steps of members."""

from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0037_fewer_indexes_of_jobs'),
    ]

    operations = [
        migrations.DeleteModel(name='Directive'),
    ]
