"""Profiles of models and of variable batches: the jobs that measure them, and their reports."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Min, Q

from scheduling.clusters.models import Device
from scheduling.common.on_commit import request_round_on_commit
from scheduling.core.canaries import CANARY_EVENT
from scheduling.core.jobspec import ElasticMode, JobSpec, PlanChoice, ProfileUse, parse_stored
from scheduling.core.lifecycle import JobState
from scheduling.core.messages import sentence
from scheduling.core.policies import UnknownPolicyError, policy_class
from scheduling.core.policies.base import Need
from scheduling.core.round.parallel_plans import BATCHES_PREFIX, GridRow, rows_to_json
from scheduling.jobs.models import LIVE_STATES, Job, JobSecret
from scheduling.jobs.queries.submit_context import read_submit_context
from scheduling.jobs.services.job_limits import JobLimitError
from scheduling.jobs.services.lifecycle import Note, record_job_event
from scheduling.jobs.services.submission import Submission, submit_job
from scheduling.jobs.validation import InvalidJobError
from scheduling.parallelism.links import (
    Points,
    before_newest_links,
    measured_points,
    spans_of,
    store_links,
)
from scheduling.parallelism.models import ModelProfile
from scheduling.rounds.services.canaries import store_canary
from scheduling.runs.models import Attempt
from scheduling.secrets import UnreadableSecretError, unseal
from tenants.errors import DomainError
from tenants.selectors import viewer_of

log = logging.getLogger(__name__)

PROFILE_LABEL: Final = "profile-of"
MOST_SECONDS: Final = 600
"""Time limit of a profile job."""
MOST_MEASURING: Final = 3
"""Maximum number of live profile jobs in a virtual cluster."""
MOST_TYPES: Final = 4
MOST_JOBS: Final = 50
"""Maximum number of jobs that one call looks at; the next calls look at the others in turn."""
TURN_SECONDS: Final = 10
"""Interval after which other jobs have their turn."""
VALID: Final = timedelta(days=30)
PAUSE: Final = timedelta(hours=1)
"""Time after a failed profile until the next one is tried."""
MOST_PLANNED: Final = 4
"""Maximum number of profiles whose grids one call computes."""
PROFILE_EVENT: Final = "profile"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfig:
    """Settings of the installation that decide whether a job is valid.

    Attributes:
        images_ignored: whether images are ignored.
        host_network: whether instances of a gang may use the network of their nodes.
    """

    images_ignored: bool
    host_network: bool


def store_profile(
    *, job_id: int, attempt: int, document: Mapping[str, Any], now: datetime
) -> None:
    """Store the profile that a job has reported; an invalid one only adds an event to the job.

    Args:
        job_id: ID of the job; only a job with ``profile: only`` may report one.
        attempt: number of its attempt.
        document: the reported document; it may be hostile.
        now: time of the report.
    """
    if document.get("event") == CANARY_EVENT:
        store_canary(job_id=job_id, document=document)
        return
    if store_links(job_id=job_id, attempt=attempt, document=document, now=now):
        return
    job = Job.objects.unscoped().filter(pk=job_id).exclude(model_fingerprint="").first()
    if job is None or _profile_use(parse_stored(job.spec)) is not ProfileUse.ONLY:
        return
    kind = Attempt.objects.get(job=job, number=attempt).device_type
    has_batches = job.model_fingerprint.startswith(BATCHES_PREFIX)
    try:
        software, seconds = _read_profile(document, kind, has_batches=has_batches)
    except ValueError as error:
        text = sentence("profile-refused", reason=str(error)[:200])
        note = Note(attempt=attempt, text=text)
        record_job_event(job_id=job_id, kind=PROFILE_EVENT, now=now, note=note)
        return
    ModelProfile.objects.unscoped().update_or_create(
        tenant_id=job.tenant_id,
        fingerprint=job.model_fingerprint,
        device_type=kind,
        defaults={
            "version": f"{document['version']}, PyTorch {software}"[:64],
            "job": job,
            "requested_at": now,
            # Grids are computed later; step times of batches are used as they are.
            "measured_at": now if has_batches else None,
            "document": dict(document),
            "grids": [],
        },
    )
    text = sentence("profile-stored", device_type=kind, seconds=f"{seconds:.0f}")
    note = Note(attempt=attempt, text=text)
    record_job_event(job_id=job_id, kind=PROFILE_EVENT, now=now, note=note)
    if has_batches:
        request_round_on_commit("profile")


def _read_profile(
    document: Mapping[str, Any], device_type: str, *, has_batches: bool
) -> tuple[str, float]:
    """Return the version of PyTorch and the duration of a valid profile.

    Raises:
        ValueError: the profile is not valid.
    """
    # Imported here since both bring NumPy or SciPy.
    if has_batches:
        from scheduling.core.performance.batch_profiles import (  # noqa: PLC0415
            read_batch_profile,
        )

        found = read_batch_profile(document, device_type=device_type)
        return found.software, found.seconds
    from scheduling.core.grids.profile_documents import read_profile  # noqa: PLC0415

    measured = read_profile(document, device_type=device_type)
    return measured.software, measured.seconds


def _profile_use(spec: JobSpec) -> ProfileUse:
    """Return whether a job is profiled, or measures a profile itself."""
    if spec.parallel is not None:
        is_fixed = spec.parallel.plan is PlanChoice.FIXED
        use = spec.parallel.profile
        return ProfileUse.NONE if is_fixed and use is ProfileUse.AUTOMATIC else use
    if spec.elastic is None or spec.elastic.mode is not ElasticMode.ADAPTIVE_BATCH:
        return ProfileUse.NONE
    return spec.elastic.profile or ProfileUse.AUTOMATIC


def _uses_profiles(job: Job) -> bool:
    """Return whether a profile affects the job: its plans, or a policy that reads goodputs."""
    if not job.model_fingerprint.startswith(BATCHES_PREFIX):
        return True
    try:
        return Need.GOODPUT in policy_class(job.virtual_cluster.policy).needs
    except UnknownPolicyError:
        return False


def plan_profiles(*, now: datetime) -> int:
    """Compute the grids of new profiles, or after new link tables; return their number.

    It may take seconds for each, and holds no transaction meanwhile. One call computes at most
    ``MOST_PLANNED``, those that wait longest first. A profile whose grids cannot be computed has
    none, and does not stop the others.
    """
    waiting = (
        ModelProfile.objects.unscoped()
        .filter(Q(measured_at=None) | before_newest_links())
        .exclude(document={})
        .exclude(fingerprint__startswith=BATCHES_PREFIX)
    )
    memory: Mapping[str, int] = dict(
        Device.objects.filter(retired_at=None)
        .values_list("device_type")
        .order_by()
        .annotate(least=Min("memory_bytes"))
        if waiting.exists()
        else ()
    )
    planned = 0
    oldest = waiting.select_related("job").order_by("requested_at", "pk")
    for profile in oldest[:MOST_PLANNED]:
        if profile.job is None:
            # Without its job, batch and schedule are unknown; computed grids stay in use.
            if profile.measured_at is None:
                profile.delete()
            else:
                ModelProfile.objects.unscoped().filter(pk=profile.pk).update(measured_at=now)
            continue
        try:
            points = measured_points(profile.device_type, now=now)
            known = memory.get(profile.device_type, 0)
            rows = list(_rows_of(profile, profile.job, known, points))
        except Exception:
            log.exception("the grids of %s cannot be computed", profile)
            rows = []
        with transaction.atomic():
            # A newer report of the same model has a later time and is computed later.
            planned += (
                ModelProfile.objects.unscoped()
                .filter(
                    pk=profile.pk,
                    measured_at=profile.measured_at,
                    requested_at=profile.requested_at,
                )
                .update(grids=rows_to_json(rows), measured_at=now)
            )
            request_round_on_commit("profile")
    return planned


def _rows_of(profile: ModelProfile, job: Job, memory: int, points: Points) -> Iterator[GridRow]:
    from scheduling.core.grids import GridState  # noqa: PLC0415  brings NumPy
    from scheduling.core.grids.link_documents import is_measured, links_of  # noqa: PLC0415
    from scheduling.core.grids.links import LinkPoint  # noqa: PLC0415
    from scheduling.core.grids.profile_documents import (  # noqa: PLC0415
        profiled_estimates,
        read_profile,
    )
    from scheduling.core.grids.tables import plan_document  # noqa: PLC0415
    from tessera.train.hybrid.plans import PlanError  # noqa: PLC0415

    parallel = parse_stored(job.spec).parallel
    if parallel is None:
        return
    kind = profile.device_type
    profiled = read_profile(profile.document, device_type=kind, memory=memory)
    measured = {name: tuple(LinkPoint(*p) for p in own) for name, own in points.items()}
    links = links_of(spans_of(kind), measured, profiled.links)
    for one in profiled_estimates(
        profiled,
        batch=parallel.batch,
        micro_batches=parallel.micro_batches,
        schedule=parallel.schedule,
        max_tensor=parallel.max_tensor,
        links=links,
    ):
        state, plan = one.state, {}
        if one.plan is not None:
            try:
                plan = plan_document(one.plan, parallel.batch)
            except PlanError:
                state = GridState.NOT_ALLOWED
        yield GridRow(
            type=kind,
            devices=one.grid.devices,
            stages=one.grid.stages,
            state=state.value,
            step_seconds=one.step_seconds if plan else 0.0,
            plan=plan,
            stage_bytes=one.stage_bytes,
            stage_seconds=tuple(
                tuple(float(f"{value:.4g}") for value in times) for times in one.stage_seconds
            )
            if plan
            else (),
            is_projected=not is_measured(
                links,
                measured,
                one.grid.devices,
                (
                    width
                    for stage in plan.get("stages", ())
                    for width in (stage["data"], stage["tensor"])
                ),
            ),
        )


def submit_profiles(*, config: ProfileConfig, now: datetime) -> list[int]:
    """Submit the profile jobs that live jobs lack; return the IDs of the new jobs.

    Hybrid jobs and jobs with variable batches are profiled, the latter only under policies that
    use goodputs.
    """
    jobs = (
        Job.objects.unscoped()
        .filter(state__in=LIVE_STATES)
        .exclude(model_fingerprint="")
        .exclude(state=JobState.STOPPING)
        .order_by("id")
        .select_related("owner", "virtual_cluster")
    )
    ids = list(jobs.values_list("id", flat=True))
    first = int(now.timestamp() / TURN_SECONDS) * MOST_JOBS % max(1, len(ids))
    found: list[int] = []
    for job in jobs.filter(pk__in=(ids[first:] + ids[:first])[:MOST_JOBS]):
        spec = parse_stored(job.spec)
        if spec.held or _profile_use(spec) is not ProfileUse.AUTOMATIC:
            continue
        if _uses_profiles(job):
            found += _profiles_of(job, spec, config, now)
    return found


def request_profile(*, job: Job, config: ProfileConfig, now: datetime) -> list[int]:
    """Submit profile jobs of a job's model again, on each of its device types.

    Returns:
        The IDs of the new jobs; none while earlier ones measure.
    """
    spec = parse_stored(job.spec)
    if not job.model_fingerprint:
        return []
    ModelProfile.objects.unscoped().filter(
        tenant=job.tenant_id, fingerprint=job.model_fingerprint
    ).exclude(job__state__in=LIVE_STATES).update(requested_at=now - VALID)
    return _profiles_of(job, spec, config, now)


def _profiles_of(job: Job, spec: JobSpec, config: ProfileConfig, now: datetime) -> list[int]:
    (role,) = spec.roles.values()
    known = {
        profile.device_type: profile
        for profile in ModelProfile.objects.unscoped()
        .filter(tenant=job.tenant_id, fingerprint=job.model_fingerprint)
        .select_related("job")
    }
    types = role.device_types or sorted(
        set(Device.objects.filter(retired_at=None).values_list("device_type", flat=True))
    )
    due = [kind for kind in types[:MOST_TYPES] if _is_due(known.get(kind), now)]
    found = []
    for kind in due:
        measuring = Job.objects.unscoped().filter(
            Q(spec__parallel__profile=ProfileUse.ONLY) | Q(spec__elastic__profile=ProfileUse.ONLY),
            state__in=LIVE_STATES,
            virtual_cluster=job.virtual_cluster_id,
        )
        if measuring.count() >= MOST_MEASURING:
            break
        new = _submit(job, spec, kind, config, now)
        ModelProfile.objects.unscoped().update_or_create(
            tenant_id=job.tenant_id,
            fingerprint=job.model_fingerprint,
            device_type=kind,
            defaults={"requested_at": now, "job": new},
        )
        found += [new.pk] if new is not None else []
    return found


def _is_due(profile: ModelProfile | None, now: datetime) -> bool:
    if profile is None:
        return True
    if profile.job is not None and profile.job.state in LIVE_STATES:
        return False
    if profile.measured_at is None:
        return not profile.document and now - profile.requested_at >= PAUSE
    return now - profile.requested_at >= VALID


def _submit(
    job: Job, spec: JobSpec, kind: str, config: ProfileConfig, now: datetime
) -> Job | None:
    """Submit a job that measures the model on one type, as the owner; None if it is refused.

    It counts for the limits and quotas of the owner, whose account has to be active.
    """
    if not job.owner.is_active:
        return None
    viewer = viewer_of(job.owner)
    context = read_submit_context(
        viewer=viewer, images_ignored=config.images_ignored, host_network=config.host_network
    )
    try:
        submission = Submission(document=profile_document(job, spec, kind), source_format="native")
        new, _ = submit_job(submission=submission, viewer=viewer, submit_context=context, now=now)
    except (InvalidJobError, JobLimitError, DomainError, UnreadableSecretError) as error:
        log.warning("no profile of job %s on %s: %s", job.pk, kind, error)
        return None
    text = sentence("profile-requested", device_type=kind, job=new.pk)
    record_job_event(job_id=job.pk, kind=PROFILE_EVENT, now=now, note=Note(text=text))
    return new


def profile_document(job: Job, spec: JobSpec, kind: str) -> dict[str, Any]:
    """Return the document of a job that measures the model of another one.

    It has the same program on one device, without ports, dependencies or notifications.
    """
    whole = spec.to_json()
    ((name, role),) = whole["roles"].items()
    share = 1.0 / spec.roles[name].devices
    own = {key: role[key] for key in ("command", "image", "container", "env") if key in role}
    secrets = {
        row.name: unseal(bytes(row.sealed)) for row in JobSecret.objects.filter(job=job, role=name)
    }
    own |= {"secrets": secrets} if secrets else {}
    own |= {"image_secret": role["image_secret"]} if "image_secret" in role else {}
    own |= {"cpus": role["cpus"] * share} if "cpus" in role else {}
    own |= {"memory": int(role["memory"] * share)} if "memory" in role else {}
    kept = ("virtual_cluster", "source", "storage", "schema_version")
    return {
        **{key: whole[key] for key in kept if key in whole},
        "name": f"{spec.name[:55]} profile",
        "class": "opportunistic",
        "labels": {PROFILE_LABEL: str(job.pk)},
        "roles": {name: {**own, "devices": 1, "device_types": [kind]}},
        **_profile_fields(whole),
        "max_duration": MOST_SECONDS,
        "notify": {"on": []},
    }


def _profile_fields(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a document that let its copy measure and end."""
    only = {"profile": ProfileUse.ONLY.value}
    if "parallel" in whole:
        kept = {k: v for k, v in whole["parallel"].items() if k not in ("stages", "plan")}
        return {"parallel": {**kept, **only}}
    batches = ("mode", "initial_batch", "max_batch", "max_local_batch")
    kept = {key: whole["elastic"][key] for key in batches if key in whole["elastic"]}
    return {"elastic": {**kept, **only}}
