"""The rules that every installation begins with no longer match inside words, or in prose.

Only those that nobody has changed are changed.
"""

from django.db import migrations
from django.db.models import F

RULES = {
    "uncorrectable ECC error": (
        r"(?i)uncorrectable ECC error",
        r"(?i)^(.*\W)?(uncorrectable ECC error encountered"
        r"|cuda_?error_?ecc_?uncorrectable)(\W.*)?$",
    ),
    "GPU lost": (
        r"(?i)GPU has fallen off the bus|GPU is lost|NVRM: Xid .*: (48|63|64|74|79|94|95),",
        r"(?i)^((.*\W)?GPU has fallen off the bus(\W.*)?"
        r"|(.*[^\w ] *)?GPU is lost([^\w ].*)?"
        r"|.*NVRM: Xid \([^)]*\): (48|63|64|74|79|94|95),.*)$",
    ),
    "CUDA out of memory": (
        r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|torch\.OutOfMemoryError",
        r"^(.*\W)?(CUDA out of memory|CUDA error: out of memory"
        r"|Cuda failure (\d+ )?'out of memory'|CUDA_ERROR_OUT_OF_MEMORY"
        r"|torch\.(cuda\.)?OutOfMemoryError: .+|RESOURCE_EXHAUSTED: Out of memory"
        r"|OOM when allocating tensor)(\W.*)?$",
    ),
}


def renew(apps, schema_editor):
    _change(apps, RULES)


def restore(apps, schema_editor):
    _change(apps, {name: (new, old) for name, (old, new) in RULES.items()})


def _change(apps, rules):
    rows = apps.get_model("scheduling", "LogRule").objects
    for name, (before, after) in rules.items():
        unchanged = rows.filter(name=name, pattern=before)
        unchanged.update(pattern=after, version=F("version") + 1)


class Migration(migrations.Migration):

    dependencies = [
        ("scheduling", "0028_how_often_jobs_were_changed"),
    ]

    operations = [migrations.RunPython(renew, restore)]
