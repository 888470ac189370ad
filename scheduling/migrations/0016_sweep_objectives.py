"""Search, objective and early stops of sweeps."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0015_shared_minutes"),
    ]

    operations = [
        migrations.AddField(
            model_name="sweep",
            name="is_watched",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="sweep",
            name="options",
            field=models.JSONField(default=dict),
        ),
        migrations.AddIndex(
            model_name="sweep",
            index=models.Index(
                condition=models.Q(("is_watched", True)),
                fields=["is_watched"],
                name="sweep_watched",
            ),
        ),
    ]
