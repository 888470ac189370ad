"""Addresses of saved views and templates, of bulk actions and of sweeps."""

from django.urls import URLPattern, path

from portal.web import jobs_acts, saved_views, sweeps

urlpatterns: list[URLPattern] = [
    path("jobs/act/", jobs_acts.act_on_many, name="jobs-act"),
    path("jobs/views/", saved_views.keep_view, name="jobs-views"),
    path("job-templates/", saved_views.job_templates, name="job-templates"),
    path("job-templates/keep/", saved_views.keep_template, name="job-template-keep"),
    path("job-templates/delete/", saved_views.drop_template, name="job-template-delete"),
    path("sweeps/", sweeps.sweeps, name="sweeps"),
    path("sweeps/new/", sweeps.new_sweep, name="sweep-new"),
    path("sweeps/check/", sweeps.check, name="sweep-check"),
    path("sweeps/<int:pk>/", sweeps.sweep, name="sweep"),
    path("sweeps/<int:pk>/stop/", sweeps.stop_all, name="sweep-stop"),
]
