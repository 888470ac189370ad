"""Performance from tables, curves of losses, interference and restarts."""

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.performance.convergence import (
    fit_losses,
    fit_speed,
    steps_left,
    steps_until_flat,
)
from scheduling.core.performance.tables import (
    Interference,
    RestartCosts,
    TableError,
    TableModel,
    Tables,
    elasticflow_overhead,
    guessed,
    merged,
    read_elasticflow,
    read_gavel,
)
from scheduling.core.policy_interface import Shape
from tests.strategies.policy_views import make_job

TEXT = "global_batch_size,1,2,4\n64,6.0,10.0,14.0\n128,3.5,6.0,\n"


class TestTables:
    MODEL = TableModel(read_elasticflow("bert", "A100", TEXT))

    def rate(self, devices, batch=64, application="bert"):
        job = make_job(1, application=application, batch=batch)
        return self.MODEL.rate(job, Shape("A100", 1, devices))

    def test_measured_sizes_are_exact_and_others_lie_between(self):
        assert self.rate(2) == 10.0
        assert self.rate(3) == pytest.approx(10.0 + 4.0 * np.log2(1.5))
        assert self.rate(8) == 0.0
        assert self.rate(4, batch=128) == 0.0

    def test_what_is_not_in_the_table_cannot_run(self):
        assert self.rate(1, application="gpt2") == 0.0
        assert self.rate(1, batch=7) == 0.0
        assert self.MODEL.goodputs([make_job(1)], [Shape("A100", 1, 1)]).tolist() == [[0.0]]

    @pytest.mark.parametrize(
        ("text", "place"),
        [
            ("global_batch_size,1\n64,fast\n", "line 2: 'fast'"),
            ("global_batch_size,1\n64,1\n-3,1\n", "line 3: '-3'"),
            ("global_batch_size,one\n64,1\n", "'one'"),
            ("global_batch_size,1\n64,nan\n", "'nan'"),
        ],
    )
    def test_a_bad_cell_is_named(self, text, place):
        with pytest.raises(TableError, match=place):
            read_elasticflow("bert", "A100", text)

    def test_tables_of_several_types_are_one(self):
        both = TableModel(
            merged([read_elasticflow("bert", kind, TEXT) for kind in ("A100", "T4")])
        )

        assert both.profiled(make_job(1, application="bert", batch=64)) == {"A100": 4, "T4": 4}

    def test_gavels_table_has_pairs_and_spread_devices(self):
        one, two = "('A', 1)", "('B', 1)"
        document = {
            "v100": {
                one: {"null": 4.0, two: [3.0, 1.0]},
                two: {"null": 2.0, one: [1.0, 3.0]},
                "('A', 16)": {"null": 30.0},
            },
            "v100_unconsolidated": {"('A', 16)": {"null": 20.0}},
        }

        model = TableModel(read_gavel(document))
        a, b = make_job(1, application="A"), make_job(2, application="B")

        assert model.pair(a, b, "v100") == (0.75, 0.5)
        assert model.pair(b, a, "v100") == (0.5, 0.75)
        assert model.rate(a, Shape("v100", 2, 16)) == 30.0
        assert model.rate(a, Shape("v100", 4, 16)) == 20.0
        assert model.speed(b, "v100") == 2.0

    def test_a_document_that_is_not_gavels_is_refused(self):
        with pytest.raises(TableError, match="v100"):
            read_gavel({"v100": {"ResNet": {"null": 1.0}}})

    def test_the_published_throughputs_are_read(self, shared_dir):
        path = shared_dir / "data/gavel/simulation_throughputs.json"
        if not path.exists():
            pytest.skip(f"no throughputs of Gavel at {path}")
        document = json.loads(path.read_text())

        model = TableModel(read_gavel(document))

        name = "('ResNet-18 (batch size 16)', 1)"
        job = make_job(1, application="ResNet-18 (batch size 16)")
        assert model.rate(job, Shape("v100", 1, 1)) == document["v100"][name]["null"]
        assert model.speed(job, "v100") > model.speed(job, "k80") > 0

    def test_no_tables_no_rates(self):
        model = TableModel(Tables(rates={}))

        assert model.most_devices(make_job(1), "a") == 0
        assert model.restart_seconds(make_job(1)) == 30.0


class TestConvergence:
    @settings(max_examples=50, deadline=None)
    @given(
        slope=st.floats(0.01, 1.0),
        offset=st.floats(0.5, 2.0),
        floor=st.floats(0.0, 0.5),
        scale=st.floats(0.1, 50.0),
    )
    def test_a_curve_of_the_assumed_form_is_found_again(self, slope, offset, floor, scale):
        def loss(step):
            return scale * (1 / (slope * step + offset) + floor)

        curve = fit_losses([(step, loss(step)) for step in range(40)])

        assert curve.error < 0.02
        assert curve.at(60) * loss(0) == pytest.approx(loss(60), rel=0.15)

    def test_outliers_do_not_matter(self):
        points = [(k, 1 / (0.1 * k + 1) + 0.1) for k in range(40)]
        spoiled = [*points[:20], (20, 40.0), *points[21:]]

        assert fit_losses(spoiled).error == pytest.approx(fit_losses(points).error, abs=1e-3)

    def test_what_is_left_shrinks_step_by_step(self):
        points = [(float(k), 2 / (0.05 * k + 1) + 0.2) for k in range(200)]

        early = steps_left(points[:60], decrease=1e-4)
        late = steps_left(points[:160], decrease=1e-4)

        assert early - late == pytest.approx(100, rel=0.2)
        assert steps_left(points[:2], decrease=1e-4) is None

    def test_a_flat_curve_is_done(self):
        assert steps_left([(k, 1.0) for k in range(9)], decrease=1e-3) == 0.0
        assert steps_until_flat(tuple((100.0 * k, 1.0) for k in range(9))) == 0.0

    def test_the_newest_loss_moves_how_much_is_left_and_not_the_curve(self):
        def left(newest):
            points = [*((100.0 * k, 1.0 / (0.5 * k + 1.0) + 0.2) for k in range(1, 9)), newest]
            return steps_until_flat(tuple(points))

        early, late = left((810.0, 0.4)), left((830.0, 0.1))

        assert early is not None
        assert late is not None
        assert early > late > 0.0

    def test_two_losses_tell_nothing(self):
        assert steps_until_flat(((1.0, 3.0), (2.0, 2.0))) is None
        assert steps_until_flat(()) is None

    def test_a_fit_costs_milliseconds(self):
        points = [(k, 1 / (0.1 * k + 1)) for k in range(200)]
        fit_losses(points)

        begun = time.process_time()
        for _ in range(10):
            fit_losses(points)

        assert (time.process_time() - begun) / 10 < 0.05

    def test_step_times_are_fitted_without_negative_parts(self):
        samples = [(n, 0.02 * 64 / n + 0.1 + 0.01 * n) for n in (1, 2, 4, 8)]

        assert fit_speed(samples, 64) == pytest.approx((0.02, 0.1, 0.01), rel=1e-6)
        assert min(fit_speed([(1, 1.0), (2, 5.0)], 64)) >= 0
        with pytest.raises(ValueError, match="no measured step"):
            fit_speed([], 64)


class TestInterference:
    def test_measured_pairs_come_before_guesses_and_both_ways_round(self):
        known = Interference()
        known.observe("a", "b", "v100", (0.8, 0.6))
        known.observe("b", "a", "v100", (0.4, 0.6))

        assert known.pair("a", "b", "v100") == pytest.approx((0.7, 0.5))
        assert known.pair("b", "a", "v100") == pytest.approx((0.5, 0.7))
        assert known.pair("a", "b", "t4", utils=(0.9, 0.6)) == pytest.approx((1 / 1.5, 1 / 1.5))
        assert guessed(0.3, 0.4) == (1.0, 1.0)
        assert guessed(None, 0.4) == (0.5, 0.5)

    def test_a_job_beside_its_like_counts_once(self):
        known = Interference()
        known.observe("a", "a", "v100", (0.8, 0.6))

        assert known.pair("a", "a", "v100") == pytest.approx((0.8, 0.6))


def test_restart_costs_follow_what_is_seen():
    costs = RestartCosts(default=30.0)
    for _ in range(20):
        costs.observe("bert", "a", 120.0)

    assert costs.seconds("bert", "a") == pytest.approx(120.0)
    assert costs.seconds("bert", "b") == pytest.approx(120.0)
    assert costs.seconds("other") == 30.0
    costs.observe("bert", "a", 20.0)
    assert costs.seconds("bert", "a") == pytest.approx(90.0)


def test_elasticflows_overheads_grow_with_size():
    assert elasticflow_overhead(1, restarts=False) == 4.0
    assert elasticflow_overhead(8, restarts=True) == 2 + 27 + 8
    assert elasticflow_overhead(256, restarts=True) == 7 + 47 + 18
