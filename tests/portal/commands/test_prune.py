"""``manage.py prune`` in every room."""

from dataclasses import replace
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from scheduling.rounds.models import Round
from tests.factories.scheduling import make_two_tenants, run_round

pytestmark = pytest.mark.django_db


def test_the_command_prunes_by_its_options(tmp_path, settings):
    settings.TESSERA = replace(settings.TESSERA, data_dir=tmp_path)
    make_two_tenants()
    run_round()
    run_round()
    out = StringIO()

    call_command("prune", "--rounds-days=0", "--jobs-days=-1", stdout=out)

    assert "1 round rows" in out.getvalue()
    assert "0 telemetry rows" in out.getvalue()
    assert Round.objects.get().number == 2


def test_a_negative_size_is_refused():
    with pytest.raises(CommandError, match="--round-bytes"):
        call_command("prune", "--round-bytes=-1")
