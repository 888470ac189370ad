"""Nodes that do not isolate jobs: one tenant at a time, and guarantees that stay true."""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest

from scheduling.core.cells import CellType, ClusterSpec, PhysicalCell, Quota, VcSpec
from scheduling.core.cells.reserving import MIXED, NodeRules, reserve
from scheduling.core.explanations.trials import Trials
from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.messages import english
from scheduling.core.reasons import Reason
from scheduling.core.round.decide import decide
from scheduling.core.round.engine_setup import empty_engine, engine_for
from scheduling.core.round.node_tenancy import Tenancies
from scheduling.core.round_result import RoundResult, Start
from scheduling.core.values import ClusterSnapshot, HoldingJob, NodeFacts, QueuedJob, VcFacts
from tessera.isolation import CONTAINER, NAMESPACE, NONE, USER
from tessera.reasons import ReasonCode

TYPES = {
    "pair": CellType(child="gpu", count=2),
    "node": CellType(child="pair", count=2, node_level=True),
    "rack": CellType(child="node", count=2),
}
NOW = 1000.0


def spec_of(quotas: Mapping[str, tuple[tuple[str, int], ...]], racks: int = 2) -> ClusterSpec:
    """Racks of two nodes of four devices: r0/n0, r0/n1, r1/n2 and so on."""
    return ClusterSpec(
        cell_types=TYPES,
        physical=tuple(
            PhysicalCell(
                type="rack",
                address=f"r{rack}",
                children=tuple(
                    PhysicalCell(address=f"n{2 * rack + number}") for number in range(2)
                ),
            )
            for rack in range(racks)
        ),
        virtual_clusters={
            name: VcSpec(
                quotas=tuple(Quota(chain="rack", level=level, count=n) for level, n in shares)
            )
            for name, shares in quotas.items()
        },
    )


def vc(number: int, name: str, tenant: int, **facts: object) -> VcFacts:
    return VcFacts(id=number, name=name, tenant=tenant, policy="fifo", **facts)  # type: ignore[arg-type]


def node(name: str, isolation: str = NONE, **facts: object) -> NodeFacts:
    values: dict[str, object] = {
        "placeable": True,
        "healthy": True,
        "has_docker": True,
        "cpus_per_device": 1.0,
        "memory_per_device": 1,
    }
    return NodeFacts(name=name, isolation=isolation, **{**values, **facts})  # type: ignore[arg-type]


def job(
    number: int,
    of: VcFacts,
    devices: int = 1,
    count: int = 1,
    *,
    borrow: bool = False,
    image: bool = False,
) -> QueuedJob:
    member = MemberDemand(role="worker", count=count, devices=devices, image=image)
    return QueuedJob(
        id=number,
        vc=of.id,
        tenant=of.tenant,
        owner=of.tenant,
        owner_name="alice",
        priority=-1 if borrow else 10,
        job_class=JobClass.OPPORTUNISTIC if borrow else JobClass.GUARANTEED,
        demand=Demand(members=(member,)),
        submitted=float(number),
    )


def snapshot(
    spec: ClusterSpec, vcs: tuple[VcFacts, ...], nodes: tuple[NodeFacts, ...], *queued: QueuedJob
) -> ClusterSnapshot:
    return ClusterSnapshot(
        now=NOW,
        round_number=1,
        round_seconds=10.0,
        seed=1,
        topology_version=1,
        spec=spec,
        vcs=vcs,
        nodes=nodes,
        queued=queued,
        holding=(),
    )


def holding(job: QueuedJob, start: Start, since: float = NOW) -> HoldingJob:
    return HoldingJob(
        id=job.id,
        vc=job.vc,
        tenant=job.tenant,
        owner=job.owner,
        priority=job.priority,
        job_class=job.job_class,
        demand=job.demand,
        submitted=job.submitted,
        since=since,
        leaving=False,
        members=tuple(member.leaves for member in start.members),
    )


ONE_EACH = spec_of({"a": (("node", 1),), "b": (("node", 1),)}, racks=1)
A, B = vc(1, "a", 1), vc(2, "b", 2)
TWO = (node("n0"), node("n1"))


def nodes_of(result: RoundResult) -> dict[int, set[str]]:
    return {start.job_id: {member.node for member in start.members} for start in result.starts}


def test_two_tenants_get_a_node_each_and_the_third_waits_with_the_reason():
    third = vc(3, "c", 3)
    spec = replace(
        ONE_EACH, virtual_clusters={**ONE_EACH.virtual_clusters, "c": VcSpec(quotas=())}
    )

    result = decide(
        snapshot(spec, (A, B, third), TWO, job(1, A), job(2, B), job(3, third, borrow=True))
    )

    places = nodes_of(result)
    assert set(places) == {1, 2}
    assert places[1] != places[2]
    reason = result.reasons[3]
    assert reason.code is ReasonCode.NODE_NOT_ISOLATED
    assert any("reset" in english(step) for step in reason.unblock)


def test_an_opportunistic_job_does_not_take_the_node_that_a_guarantee_needs():
    result = decide(snapshot(ONE_EACH, (A, B), TWO, job(1, A), job(2, A, 4, borrow=True)))

    assert result.reasons[2].code is ReasonCode.NODE_NOT_ISOLATED
    assert set(nodes_of(result)) == {1}


def test_an_owned_node_stays_with_its_tenant_after_its_jobs_have_ended():
    owned = (node("n0", owner=2), node("n1"))

    result = decide(snapshot(ONE_EACH, (A, B), owned, job(1, A, 4)))

    assert nodes_of(result) == {1: {"n1"}}


def test_an_owned_node_is_kept_from_others_whatever_its_level_is_now():
    owned = (node("n0", NAMESPACE, owner=2), node("n1", NAMESPACE, owner=2))

    result = decide(snapshot(ONE_EACH, (A, B), owned, job(1, A), job(2, A, image=True)))

    assert {reason.code for reason in result.reasons.values()} == {ReasonCode.NODE_NOT_ISOLATED}


def test_jobs_with_an_image_share_an_unowned_node_until_a_guarantee_needs_it():
    spec = spec_of({"a": (("node", 2),), "b": ()}, racks=1)
    first = snapshot(spec, (A, B), TWO, *(job(n, B, 4, borrow=True, image=True) for n in (1, 2)))
    started = decide(first)
    assert set(nodes_of(started)) == {1, 2}
    running = tuple(
        holding(one, start) for one, start in zip(first.queued, started.starts, strict=True)
    )

    result = decide(replace(first, queued=(job(3, A, 1),), holding=running))

    assert [one.for_job for one in result.preemptions] == [3]
    assert result.reasons[3].code is ReasonCode.WAITING_VICTIM_CHECKPOINT


def test_a_guaranteed_job_clears_a_node_where_others_use_other_devices():
    spec = spec_of({"a": (("node", 2),), "b": ()}, racks=1)
    first = snapshot(
        spec, (A, B), TWO, *(job(n, B, 2, 1, borrow=True, image=True) for n in (1, 2, 3))
    )
    started = decide(first)
    running = tuple(
        holding(one, start) for one, start in zip(first.queued, started.starts, strict=True)
    )
    wanted = job(4, A, 1, count=2)

    result = decide(
        replace(first, queued=(wanted, job(5, B, borrow=True, image=True)), holding=running)
    )

    assert result.preemptions
    assert result.reasons[4].code is ReasonCode.WAITING_VICTIM_CHECKPOINT
    left = tuple(h for h in running if h.id not in {p.job_id for p in result.preemptions})
    after = decide(replace(first, queued=(wanted,), holding=left))
    assert set(nodes_of(after)) == {4} or after.preemptions


def test_a_trial_reports_what_the_round_says():
    now = snapshot(ONE_EACH, (A, B), (node("n0", owner=2), node("n1", owner=2)), job(1, A))

    assert Trials(now, ()).refusal(now.queued[0]) == decide(now).reasons[1]


def test_minimum_levels_keep_jobs_off_weaker_nodes_with_the_reason():
    nodes = (node("n0", NAMESPACE, has_docker=False), node("n1", USER, has_docker=False))
    strict = replace(A, least_isolation=USER)

    placed = decide(snapshot(ONE_EACH, (strict, B), nodes, job(1, strict)))
    held = decide(snapshot(ONE_EACH, (replace(A, least_isolation=CONTAINER), B), nodes, job(1, A)))

    assert nodes_of(placed) == {1: {"n1"}}
    assert placed.starts[0].members[0].isolation == USER
    assert held.reasons[1].code is ReasonCode.NODE_NOT_ISOLATED
    assert "level container" in held.reasons[1].text


def test_dedicated_nodes_take_their_tenants_alone_and_guarantees_know_it():
    nodes = (node("n0", USER, tenants=frozenset({1})), node("n1", USER))

    result = decide(snapshot(ONE_EACH, (A, B), nodes, job(1, A, 4), job(2, B, 4)))
    full = decide(snapshot(ONE_EACH, (A, B), nodes, job(2, B, 4), job(3, B, 4, borrow=True)))

    assert nodes_of(result) == {1: {"n0"}, 2: {"n1"}}
    assert full.reasons[3].code is ReasonCode.NODE_DEDICATED


def test_the_level_that_a_round_relied_on_goes_with_each_member():
    nodes = (node("n0", NAMESPACE), node("n1", NONE))

    result = decide(
        snapshot(ONE_EACH, (A, B), nodes, job(1, A, 4), job(2, A, 1, image=True, borrow=True))
    )

    levels = {start.job_id: start.members[0].isolation for start in result.starts}
    assert levels[2] == CONTAINER
    assert levels[1] == (NAMESPACE if nodes_of(result)[1] == {"n0"} else NONE)


def test_shares_of_two_tenants_do_not_fit_one_node():
    spec = spec_of({"a": (("pair", 1),), "b": (("pair", 1),)}, racks=1)
    engine = empty_engine(spec)
    rules = NodeRules(tenant_of={"a": 1, "b": 2}, owners={"n0": None, "n1": 1})

    fits = reserve(engine, rules)
    short = reserve(engine, replace(rules, owners={"n0": 1, "n1": 1}))

    assert fits.short == ()
    assert fits.holders == {"n0": 2, "n1": 1}
    assert [(one.vc, one.level, one.cells) for one in short.short] == [("b", "pair", 1)]


def test_a_pinned_cell_on_the_node_of_another_tenant_is_short():
    spec = replace(ONE_EACH, virtual_clusters={"a": VcSpec(pinned={"mine": "r0/n0"})})

    found = reserve(empty_engine(spec), NodeRules(tenant_of={"a": 1}, owners={"n0": 2}))

    assert [(one.vc, one.cells) for one in found.short] == [("a", 1)]
    assert found.holders["n0"] == MIXED


# Random worlds


SHARES: tuple[dict[str, tuple[tuple[str, int], ...]], ...] = (
    {"a": (("node", 2),), "b": (("node", 2),), "c": (("node", 2),)},
    {"a": (("rack", 1),), "b": (("node", 1),), "c": (("node", 1),)},
    {"a": (("pair", 2),), "b": (("pair", 3),), "c": (("node", 1),)},
    {"a": (("rack", 1), ("node", 1)), "b": (("node", 1),), "c": ()},
    {"a": (("gpu", 3),), "b": (("rack", 1),), "c": (("node", 2),)},
)


@dataclass
class World:
    """A cluster that lives round by round, with everything that a round can meet."""

    rng: random.Random
    spec: ClusterSpec
    vcs: tuple[VcFacts, ...]
    nodes: dict[str, NodeFacts]
    queued: dict[int, QueuedJob] = field(default_factory=dict)
    running: dict[int, HoldingJob] = field(default_factory=dict)
    bare: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    levels_move: bool = False
    number: int = 0

    def snapshot(self) -> ClusterSnapshot:
        base = snapshot(self.spec, self.vcs, tuple(self.nodes.values()), *self.queued.values())
        return replace(base, holding=tuple(self.running.values()))

    def step(self) -> tuple[ClusterSnapshot, RoundResult]:
        self._events()
        now = self.snapshot()
        result = decide(now, trials=0)
        for start in result.starts:
            self._start(start)
        for order in result.preemptions:
            self.running[order.job_id] = replace(self.running[order.job_id], leaving=True)
        for number, reason in result.reasons.items():
            claims = reason.claims
            self.queued[number] = replace(self.queued[number], claims=claims)
        return now, result

    def _events(self) -> None:
        for number, held in list(self.running.items()):
            if self.rng.random() < (0.6 if held.leaving else 0.25):
                del self.running[number]
                self.bare.pop(number, None)
        for _ in range(self.rng.randint(0, 3)):
            self.number += 1
            self.queued[self.number] = self._new_job(self.number)
        if len(self.queued) > 12:
            del self.queued[self.rng.choice(list(self.queued))]
        name = self.rng.choice(list(self.nodes))
        facts = self.nodes[name]
        if facts.owner is not None and self.rng.random() < 0.05 and not self._used(name):
            self.nodes[name] = replace(facts, owner=None)
        if self.levels_move and self.rng.random() < 0.1:
            self.nodes[name] = replace(
                self.nodes[name], isolation=self.rng.choice([NONE, NAMESPACE, USER])
            )

    def _used(self, name: str) -> bool:
        return any(
            f"/{name}/" in leaf.address
            for held in self.running.values()
            for leaves in held.members
            for leaf in leaves
        )

    def _new_job(self, number: int) -> QueuedJob:
        of = self.rng.choice(self.vcs)
        levels = {quota.level for quota in self.spec.virtual_clusters[of.name].quotas}
        # Several small cells for one instance are a gift of the engine, and no promise.
        sizes = [1] if "gpu" in levels else [2] if "pair" in levels else [1, 1, 2, 4]
        return job(
            number,
            of,
            self.rng.choice(sizes),
            self.rng.choice([1, 1, 1, 2]),
            borrow=self.rng.random() < 0.5,
            image=self.rng.random() < 0.3,
        )

    def _start(self, start: Start) -> None:
        queued = self.queued.pop(start.job_id)
        self.running[queued.id] = holding(queued, start)
        for member in start.members:
            if member.isolation == NONE:
                facts = self.nodes[member.node]
                assert facts.isolation == NONE, "a level was relied on that is not there"
                assert facts.owner in (None, queued.tenant), "an owned node was passed on"
                self.nodes[member.node] = replace(facts, owner=queued.tenant)
                self.bare[queued.id].add(member.node)
            assert self.nodes[member.node].owner in (None, queued.tenant)

    def meetings(self) -> Iterator[str]:
        """Nodes on which plain jobs of two tenants run, one of them without isolation."""
        for name in self.nodes:
            tenants = {
                self.running[number].tenant for number, nodes in self.bare.items() if name in nodes
            }
            if not tenants:
                continue
            tenants |= {
                held.tenant
                for held in self.running.values()
                for leaves in held.members
                for leaf in leaves
                if f"/{name}/" in leaf.address
            }
            if len(tenants) > 1:
                yield name


def world(seed: int, *, levels_move: bool) -> World:
    rng = random.Random(seed)
    shares = SHARES[seed % len(SHARES)]
    spec = spec_of(shares, racks=3)
    names = [f"n{number}" for number in range(6)]
    levels = [NONE] * 6 if rng.random() < 0.5 else [rng.choice([NONE, NAMESPACE]) for _ in names]
    return World(
        rng=rng,
        spec=spec,
        vcs=tuple(vc(n, name, n) for n, name in enumerate(shares, 1)),
        nodes={
            name: node(name, level, has_docker=not levels_move or rng.random() < 0.7)
            for name, level in zip(names, levels, strict=True)
        },
        levels_move=levels_move,
    )


def within_quota(world: World, asked: QueuedJob, reason: Reason) -> bool:
    """Whether a guaranteed job was kept waiting by a rule about tenants alone."""
    return asked.job_class is JobClass.GUARANTEED and reason.code is ReasonCode.NODE_NOT_ISOLATED


@pytest.mark.parametrize("seed", range(20))
def test_over_5000_rounds_tenants_never_meet_and_guarantees_hold(seed):
    made = world(seed, levels_move=False)

    for _ in range(250):
        now, result = made.step()

        assert not list(made.meetings())
        reservation = Tenancies(now, engine_for(now)).reservation
        assert reservation.short == (), "a guarantee has lost its nodes"
        for number, reason in result.reasons.items():
            asked = next(one for one in now.queued if one.id == number)
            assert not within_quota(made, asked, reason), (number, reason)


@pytest.mark.parametrize("seed", range(20, 40))
def test_over_5000_rounds_tenants_never_meet_while_levels_change(seed):
    made = world(seed, levels_move=True)

    for _ in range(250):
        made.step()

        assert not list(made.meetings())
