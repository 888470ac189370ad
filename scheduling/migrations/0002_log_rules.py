"""The log rules of a new installation; admins edit or delete them."""

from django.db import migrations

RULES = (
    (
        'uncorrectable ECC error',
        r'(?i)^(.*\W)?(uncorrectable ECC error encountered'
        r'|cuda_?error_?ecc_?uncorrectable)(\W.*)?$',
        'exclude-node',
    ),
    (
        'GPU lost',
        r'(?i)^((.*\W)?GPU has fallen off the bus(\W.*)?'
        r'|(.*[^\w ] *)?GPU is lost([^\w ].*)?'
        r'|.*NVRM: Xid \([^)]*\): (48|63|64|74|79|94|95),.*)$',
        'exclude-node',
    ),
    (
        'CUDA out of memory',
        r'^(.*\W)?(CUDA out of memory|CUDA error: out of memory'
        r"|Cuda failure (\d+ )?'out of memory'|CUDA_ERROR_OUT_OF_MEMORY"
        r'|torch\.(cuda\.)?OutOfMemoryError: .+|RESOURCE_EXHAUSTED: Out of memory'
        r'|OOM when allocating tensor)(\W.*)?$',
        'stop-retries',
    ),
)


def insert(apps, schema_editor):
    rules = apps.get_model('scheduling', 'LogRule')
    for name, pattern, action in RULES:
        rules.objects.get_or_create(name=name, defaults={'pattern': pattern, 'action': action})


class Migration(migrations.Migration):
    dependencies = [('scheduling', '0001_initial')]

    operations = [migrations.RunPython(insert, migrations.RunPython.noop)]
