from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0021_link_tables")]

    operations = [
        migrations.AddField(
            model_name="fragmentationforecast",
            name="moves",
            field=models.JSONField(default=list),
        ),
    ]
