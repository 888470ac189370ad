"""Nobody could choose a language before; those who have the old default follow their browser."""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps


def follow_the_browser(apps: StateApps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Let everybody with the old default read what their browser asks for."""
    apps.get_model("tenants", "User").objects.filter(language="en").update(language="browser")


def speak_english(apps: StateApps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Give back the old default, before its constraint comes back."""
    apps.get_model("tenants", "User").objects.filter(language="browser").update(language="en")


class Migration(migrations.Migration):
    dependencies = [("tenants", "0005_language_of_the_browser")]

    operations = [migrations.RunPython(follow_the_browser, speak_english)]
