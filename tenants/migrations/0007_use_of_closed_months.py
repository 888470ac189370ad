"""Sums of use were made of leases; now they are made of the days of closed months, anew."""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps


def forget_sums(apps: StateApps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Delete all sums; the next month that is closed makes them of all days before its end."""
    apps.get_model("tenants", "UsedSoFar").objects.all().delete()


class Migration(migrations.Migration):
    dependencies = [("tenants", "0006_browsers_choose_the_language")]

    operations = [migrations.RunPython(forget_sums, forget_sums)]
