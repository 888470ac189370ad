"""Addresses of the pages about jobs."""

from django.urls import URLPattern, path

from portal.web import (
    estimates,
    job,
    job_actions,
    job_devices,
    job_edit,
    job_logs,
    job_receipts,
    job_waiting,
    jobs,
    jobs_acts,
    submit,
)

urlpatterns: list[URLPattern] = [
    path("submit/", submit.submit, name="submit"),
    path("submit/check/", submit.check_typed, name="submit-check"),
    path("jobs/", jobs.jobs, name="jobs"),
    path("jobs/stop/", jobs_acts.stop_one, name="jobs-stop"),
    path("jobs/<int:job_id>/", job.overview, name="job"),
    path("jobs/<int:job_id>/logs/", job.logs, name="job-logs"),
    path("jobs/<int:job_id>/logs/search/", job_logs.search, name="job-log-search"),
    path("jobs/<int:job_id>/attempts/", job.attempts, name="job-attempts"),
    path("jobs/<int:job_id>/events/", job.events, name="job-events"),
    path("jobs/<int:job_id>/receipts/", job_receipts.receipts, name="job-receipts"),
    path("jobs/<int:job_id>/spec/", job.spec, name="job-spec"),
    path("jobs/<int:job_id>/calls/", job.calls, name="job-calls"),
    path("jobs/<int:job_id>/devices/", job_devices.devices, name="job-devices"),
    path("jobs/<int:job_id>/goodput.json", job.goodput, name="job-goodput"),
    path("jobs/<int:job_id>/stop/", job_actions.stop, name="job-stop"),
    path("jobs/<int:job_id>/clone/", job_actions.clone, name="job-clone"),
    path("jobs/<int:job_id>/unblock/", job_waiting.unblock, name="job-unblock"),
    path("jobs/<int:job_id>/amend/", job_waiting.amend, name="job-amend"),
    path("jobs/<int:job_id>/edit/", job_edit.edit, name="job-edit"),
    path("jobs/<int:job_id>/evidence/", job_waiting.evidence, name="job-evidence"),
    path("estimates/", estimates.estimates, name="estimates"),
    path("jobs/<int:job_id>/release/", job_actions.release, name="job-release"),
    path(
        "jobs/<int:job_id>/logs/<slug:role>-<int:rank>.log",
        job_actions.download_log,
        name="job-log-download",
    ),
]
