"""Gives each tenant that is there already a Unix user id of the configured range."""

from typing import Any

from django.conf import settings
from django.db import migrations
from django.db.models import Max


def assign(apps: Any, schema_editor: Any) -> None:
    """In the order of creation, archived tenants too: their files may still be on nodes."""
    tenants = apps.get_model("tenants", "Tenant")
    first, last = settings.TENANT_UIDS
    newest = tenants.objects.aggregate(newest=Max("uid"))["newest"]
    following = first if newest is None else max(first, newest + 1)
    for tenant in tenants.objects.filter(uid=None).order_by("position"):
        if following > last:
            raise RuntimeError("TESSERA_TENANT_UIDS has too few user ids for all tenants")
        tenants.objects.filter(pk=tenant.pk).update(uid=following)
        following += 1


class Migration(migrations.Migration):
    dependencies = [("tenants", "0011_unix_users_of_tenants")]

    operations = [migrations.RunPython(assign, migrations.RunPython.noop)]
