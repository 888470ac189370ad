from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0008_counts_and_order_of_the_queue'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='attempt',
            index=models.Index(fields=['ended_at', 'created_at'], name='attempt_by_end'),
        ),
    ]
