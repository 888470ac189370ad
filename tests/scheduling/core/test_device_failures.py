"""Bad luck of a device: rates against the fleet, jobs and tenants counted once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betainc

from scheduling.core.device_failures import JobOnDevice, beta_cdf, failures_of, fleet_rate

FLEET = fleet_rate(600, 9)
seen = st.lists(
    st.builds(
        JobOnDevice,
        job=st.integers(1, 8),
        tenant=st.integers(1, 3),
        failed=st.booleans(),
    ),
    max_size=30,
)


def jobs(*failed: bool, tenants: int = 3) -> list[JobOnDevice]:
    return [
        JobOnDevice(job=number, tenant=number % tenants, failed=one)
        for number, one in enumerate(failed)
    ]


@given(st.floats(0.0, 1.0), st.floats(0.01, 500.0), st.floats(0.01, 500.0))
def test_the_distribution_is_that_of_scipy(x: float, a: float, b: float) -> None:
    assert beta_cdf(x, a, b) == pytest.approx(float(betainc(a, b, x)), abs=1e-9)


@given(seen, st.floats(0.001, 0.3))
def test_a_repeated_entry_changes_nothing_and_a_failure_never_lowers_the_rate(
    found: list[JobOnDevice], fleet: float
) -> None:
    before = failures_of(found, fleet)

    assert failures_of([*found, *found], fleet) == before
    worse = failures_of([*found, JobOnDevice(job=99, tenant=9, failed=True)], fleet)
    better = failures_of([*found, JobOnDevice(job=99, tenant=9, failed=False)], fleet)
    assert better.rate <= before.rate + 1e-12 <= worse.rate + 2e-12
    assert before.failed <= before.jobs


@pytest.mark.parametrize(
    ("found", "is_suspect"),
    [
        (jobs(True, True, True, False), True),
        (jobs(True, True, True, False, tenants=1), False),
        (jobs(True, True, False), False),
        (jobs(True, True, True, *[False] * 200), False),
        ([], False),
        ([JobOnDevice(job=1, tenant=n, failed=True) for n in range(5)], False),
    ],
)
def test_a_device_is_suspect_after_failures_of_several_jobs_of_several_tenants(
    found: list[JobOnDevice], *, is_suspect: bool
) -> None:
    assert failures_of(found, FLEET).is_suspect is is_suspect


def test_where_many_jobs_fail_a_few_failures_are_no_sign() -> None:
    assert not failures_of(jobs(True, True, True, False), fleet_rate(600, 200)).is_suspect
