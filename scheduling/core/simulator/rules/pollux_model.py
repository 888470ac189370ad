"""The policies' model of jobs under the rules of Pollux's artefact."""

from scheduling.core.performance.fitting import Observation
from scheduling.core.performance.goodput import Noise
from scheduling.core.performance.learned import LearnedModel, Learner
from scheduling.core.performance.throughput import exchange_time, pass_times, step_times
from scheduling.core.policy_interface import PolicyJob, Shape
from scheduling.core.simulator.clusters import SimCluster
from scheduling.core.simulator.rules.pollux_jobs import RESTART_SECONDS, PolluxJob
from scheduling.core.simulator.traces import Knowledge


class PolluxModel(LearnedModel):
    """Observed performance; with an oracle true speeds, with sizes also the remaining work."""

    def __init__(self, cluster: SimCluster, knowledge: Knowledge) -> None:
        super().__init__()
        self._cluster = cluster
        self._knowledge = knowledge
        self._jobs: dict[int, PolluxJob] = {}
        self._rates: dict[tuple[str, int, int], float] = {}

    def introduce(self, job: PolluxJob) -> None:
        """Add a job on its arrival."""
        app = job.app
        shared = self._knowledge.oracle or self._knowledge.shared_history
        history = app.name if shared else f"job {job.index}"
        self._jobs[job.index] = job
        if self._knowledge.oracle:
            seen = [Observation(*row) for row in app.steps.observations()]
            self.seed(history, app.device_type, seen)
        self.add(
            job.index,
            Learner(
                history=history,
                limits={app.device_type: app.limits},
                requested=job.job.batch or app.limits.initial,
                speeds={app.device_type: app.steps.speed()},
                restart_seconds=RESTART_SECONDS,
                most_devices=min(app.most_devices, self._cluster.devices),
            ),
        )
        if self._knowledge.oracle:
            self.seed_noise(history, Noise(*app.profile.noise(app.limits.initial, 0)))

    def forget(self, job_id: int) -> None:
        """Drop a job; its observations remain if others share them."""
        del self._jobs[job_id]
        super().forget(job_id)

    def rate(self, job: PolicyJob, shape: Shape, batch: int | None = None) -> float:
        """Iterations per second at a total batch (None: the requested one) on packed nodes.

        With one device the gradient is always accumulated, as the artefact takes it.
        """
        mine = self._jobs[job.id]
        app, total = mine.app, batch or job.terms.batch or mine.app.limits.initial
        devices = shape.devices
        if devices > total // app.limits.local_min or (devices > 1 and not app.program.adapts):
            return 0.0
        if not self._knowledge.oracle:
            return self._learned_rate(mine, shape, total)
        key = (app.name, total, devices)
        if key not in self._rates:
            local, passes = self._split(mine, total, devices)
            placement = self._cluster.packed(shape.type, devices)
            self._rates[key] = 1.0 / app.iteration(placement, local, passes)
        return self._rates[key]

    def steps_left(self, job: PolicyJob, batch: int | None) -> float | None:
        """Iterations at a fixed total batch until the last epoch begins, then 1; None: hidden."""
        if batch is None or not self._knowledge.size_aware:
            return None
        mine = self._jobs[job.id]
        profile, last = mine.app.profile, mine.app.program.epochs - 1
        if mine.epoch >= last:
            return 1.0
        return profile.iteration(batch, last) - profile.iteration(batch, mine.epoch)

    def _learned_rate(self, job: PolluxJob, shape: Shape, batch: int) -> float:
        """The expected rate by the job's own steps; before them, one a second and device."""
        fit = self.fitted(job.index, shape.type)
        if fit is None:
            return float(shape.devices)
        local, passes = self._split(job, batch, shape.devices)
        exchange = exchange_time(fit, shape.nodes, shape.devices)
        return 1.0 / float(step_times(fit, pass_times(fit, local), exchange, passes))

    def _split(self, job: PolluxJob, batch: int, devices: int) -> tuple[int, int]:
        local, passes = job.app.split(batch, devices)
        if devices == 1 and not passes:
            return -(-local // 2), 1
        return local, passes
