"""The rules about logs that every installation begins with; admins change or delete them."""

from django.db import migrations

RULES = (
    ("uncorrectable ECC error", r"(?i)uncorrectable ECC error", "exclude-node"),
    (
        "GPU lost",
        r"(?i)GPU has fallen off the bus|GPU is lost|NVRM: Xid .*: (48|63|64|74|79|94|95),",
        "exclude-node",
    ),
    (
        "CUDA out of memory",
        r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|torch\.OutOfMemoryError",
        "stop-retries",
    ),
)


def make(apps, schema_editor):
    rules = apps.get_model("scheduling", "LogRule")
    for name, pattern, action in RULES:
        rules.objects.get_or_create(name=name, defaults={"pattern": pattern, "action": action})


class Migration(migrations.Migration):

    dependencies = [
        ("scheduling", "0015_watching"),
    ]

    operations = [
        migrations.RunPython(make, migrations.RunPython.noop),
    ]
