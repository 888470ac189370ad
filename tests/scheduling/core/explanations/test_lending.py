"""What of each promise is unhealthy, cordoned or lent."""

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.explanations.lending import ChainUse, missing


@given(
    promised=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4),
    gone=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
    free=st.integers(0, 9),
)
def test_what_is_missing_is_counted_once_and_never_more_than_is_promised(promised, gone, free):
    out, cordoned, borrowed = gone
    used = {vc: min(pair) for vc, pair in enumerate(promised)}
    guaranteed = {vc: pair[0] for vc, pair in enumerate(promised)}
    total = sum(used.values()) + out + cordoned + borrowed + free
    use = ChainUse(
        guaranteed=guaranteed,
        used=used,
        borrowed=borrowed,
        out=out,
        cordoned=cordoned,
        total=total,
    )

    found = missing(use)

    away = {vc: one.unhealthy + one.cordoned + one.lent for vc, one in found.items()}
    assert all(0 <= away[vc] <= guaranteed[vc] - used[vc] for vc in guaranteed)
    assert sum(one.unhealthy for one in found.values()) <= out
    assert sum(one.cordoned for one in found.values()) <= cordoned
    claims, taken = sum(guaranteed.values()) - sum(used.values()), out + cordoned + borrowed
    # What is free or taken covers all claims, or the promises exceed the devices.
    covered = taken + free >= claims
    assert sum(away.values()) == (max(0, claims - free) if covered else taken)
