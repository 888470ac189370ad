"""Explained shares of viewers: now, over a span of stored rounds, and their sums."""

from dataclasses import replace
from datetime import timedelta

import pytest

from scheduling.clusters.models import VirtualCluster
from scheduling.core.explanations.shares import Limit, explain_shares
from scheduling.estimates.services.cached_decision import standing_now
from scheduling.estimates.services.shares import SAMPLES, SumCheck, shares_view, sum_checks
from scheduling.jobs.models import Job
from scheduling.storage.directory import DirectoryStorage
from tenants.errors import ForbiddenError
from tests.factories.attempts import run_members
from tests.factories.cluster import NOW, OPPORTUNISTIC
from tests.factories.job_history import run_round_at, seconds_after_now
from tests.factories.scheduling import CONFIG, end, make_two_tenants, submit
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db


def view(tmp_path, who="ada", span="now", *, now=NOW):
    return shares_view(
        make_viewer(who), span, config=CONFIG, storage=DirectoryStorage(tmp_path), now=now
    )


def start_all(tmp_path, seconds):
    run_round_at(tmp_path, seconds)
    for job in Job.objects.unscoped().filter(state="admitted"):
        run_members(job, seconds_after_now(seconds))


@pytest.fixture
def lent_cluster(tmp_path):
    """Bob borrows all 24 devices; one more job of bob and one of alice wait to borrow 8."""
    make_two_tenants()
    held = [submit("bob", devices=8, **OPPORTUNISTIC) for _ in range(3)]
    start_all(tmp_path, 0)
    for job in held:
        job.refresh_from_db()
    submit("bob", devices=8, **OPPORTUNISTIC)
    submit("alice", devices=8, **OPPORTUNISTIC)
    return held


def test_a_member_sees_the_own_tenant_and_totals(tmp_path, lent_cluster):
    found = view(tmp_path, "alice")

    assert [name for name, _ in found.vcs] == ["vision-a"]
    assert [name for name, _ in found.tenants] == ["vision"]
    ((_, vc),) = found.vcs
    ((_, tenant),) = found.tenants
    assert (vc.guaranteed, vc.used, vc.borrowed, vc.lent) == (8, 0, 0, 8)
    assert vc.waiting == {Limit.IDLE: 8}
    assert (tenant.weight, tenant.requested, tenant.fair) == (8, 8, 8)
    assert found.totals is not None
    assert (found.totals.borrowed, found.totals.requested, found.totals.idle) == (24, 40, 0)
    assert "language" not in repr(found)
    assert "bob" not in repr(found)
    assert all(check.holds for check in found.checks)


def test_an_admin_sees_all_tenants_and_their_limits(tmp_path, lent_cluster):
    found = view(tmp_path, "root")

    assert [name for name, _ in found.vcs] == ["language-a", "vision-a"]
    language = dict(found.tenants)["language"]
    assert (language.borrowed, language.requested, language.fair) == (24, 32, 16)


def test_people_without_a_tenant_see_nothing(tmp_path, lent_cluster):
    with pytest.raises(ForbiddenError):
        view(tmp_path, "carol")


def test_a_span_is_the_mean_of_its_samples_and_ends_count(tmp_path, lent_cluster):
    """Bob's first job ends after 30 minutes without a round, so its devices are idle since."""
    end(lent_cluster[0], at=seconds_after_now(1800))
    Job.objects.unscoped().filter(state="queued").delete()

    found = view(tmp_path, "root", "1h", now=NOW + timedelta(hours=1))

    assert (found.samples, found.expected) == (SAMPLES, SAMPLES)
    assert found.until - found.since == timedelta(seconds=75) * (SAMPLES - 1)
    language = dict(found.vcs)["language-a"]
    # 24 devices in the samples before the end, 16 in the samples at and after it.
    assert language.borrowed == pytest.approx((23 * 24 + 25 * 16) / SAMPLES)
    assert found.totals is not None
    assert found.totals.idle == pytest.approx(25 * 8 / SAMPLES)
    assert all(check.holds for check in found.checks)
    later = view(tmp_path, "root", "1h", now=NOW + timedelta(hours=2))
    assert dict(later.vcs)["language-a"].borrowed == 16


def test_a_span_without_stored_rounds_has_no_samples(tmp_path):
    make_two_tenants()

    found = view(tmp_path, "root", "7d")

    assert (found.samples, found.vcs, found.totals) == (0, (), None)


def test_a_damaged_round_is_no_sample(tmp_path, lent_cluster):
    for file in tmp_path.rglob("*.zst"):
        file.write_bytes(b"damaged")

    assert view(tmp_path, "root", "1h", now=NOW + timedelta(hours=1)).samples == 0


def test_a_wrong_sum_is_found(tmp_path, lent_cluster):
    standing = standing_now(config=CONFIG, now=NOW)
    moment = explain_shares(standing.snapshot, standing.result)
    vision = VirtualCluster.objects.unscoped().get(name="vision-a")
    wrong = replace(
        moment,
        vcs={**moment.vcs, vision.pk: replace(moment.vcs[vision.pk], waiting={})},
        totals=replace(moment.totals, weight=25, idle=1, lent=25),
    )

    assert all(check.holds for check in sum_checks(moment, moment.tenants))
    broken = {check.name for check in sum_checks(wrong, moment.tenants) if not check.holds}
    assert broken == {"weights", "devices", "requested", "lent"}
    assert SumCheck(name="fair", left=1.0, right=1.0 + 1e-9).holds
