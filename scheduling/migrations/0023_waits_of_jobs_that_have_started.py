"""Counts the waits of the jobs that have started already, so that the histogram begins whole."""

from bisect import bisect_left

from django.db import migrations

# Those of scheduling.core.waits on the day of this migration.
BOUNDS = (1.0, 2.5, *(5.0 * 2**power for power in range(12)))


def count(apps, schema_editor):
    jobs = apps.get_model('scheduling', 'Job')._base_manager.filter(first_started_at__isnull=False)
    found = {}
    rows = jobs.order_by().values_list('virtual_cluster_id', 'submitted_at', 'first_started_at')
    for vc_id, submitted, started in rows.iterator():
        seconds = max((started - submitted).total_seconds(), 0.0)
        tally = found.setdefault((vc_id, bisect_left(BOUNDS, seconds)), [0, 0.0])
        tally[0] += 1
        tally[1] += seconds
    tallies = apps.get_model('scheduling', 'WaitTally')
    tallies.objects.all().delete()  # of an earlier time, if this one has been taken back
    tallies.objects.bulk_create(
        tallies(virtual_cluster_id=vc_id, wait_class=wait_class, count=number, seconds=seconds)
        for (vc_id, wait_class), (number, seconds) in sorted(found.items())
    )


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0022_waits_are_counted'),
    ]

    operations = [
        migrations.RunPython(count, migrations.RunPython.noop),
    ]
