"""A document of another system that is pasted into the submit page, in Chinese."""

import html
import re

import pytest
from django.test import Client
from django.utils import translation

from portal.i18n import translated
from scheduling.compat.formats import TITLES
from scheduling.compat.messages import phrase
from tenants.models import User
from tenants.roles import Role
from tests.factories.cluster import make_shared_cluster
from tests.support.cluster_pages import sign_in
from tests.support.latin import PROPER, SPELLED, english_in
from tests.support.submit_page import check_specification

pytestmark = pytest.mark.django_db
WRITTEN = frozenset(
    re.findall(
        r"\w+",
        "afterok color commands count cpu dockerimage mem memory memoryMB name partition "
        "prerequisites retry script srun task time type warp",
    )
)
"""Keys and names of the documents below."""


@pytest.fixture
def alice(client: Client) -> Client:
    make_shared_cluster(alice=Role.MEMBER)
    User.objects.filter(username="alice").update(language="zh-hans")
    return sign_in(client, "alice")


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/bash\n#SBATCH --partition=cpu --gres=gpu:1 --array=1-2\n#SBATCH -o log\nsrun a\n",
        "#!/bin/bash\n#SBATCH --gres=gpu:x --mem=a --time=soon\n",
        "type: task\ncommands: [ls]\nports: [80]\nresources: {gpu: 1..2}\n",
        "type: task\ncommands: [ls]\nresources: {gpu: '', cpu: 4..2}\n",
        "run: ls\nfile_mounts: {a: b}\nenvs: {KEY: null}\nwarp: 1\n",
        "protocolVersion: 2\nname: a\ntype: job\ncolor: red\ntaskRoles: {w: {dockerImage: x}}\n",
        "name: a\nname: b\n",
        "name: a: b\n",
    ],
)
def test_all_that_the_panel_says_of_it_is_chinese(alice: Client, text: str) -> None:
    found = check_specification(alice, source="yaml", yaml=text)

    told = " ".join(
        [found["plan"], found["summary"], *(each["message"] for each in found["errors"])]
    )
    assert english_in(told, frozenset((*PROPER, *SPELLED, *WRITTEN))) == []


def test_the_page_lists_the_formats_of_all_importers(alice: Client) -> None:
    assert ", ".join(TITLES.values()) in alice.get("/submit/").content.decode()


def test_what_was_not_understood_is_reported_in_the_panel(alice: Client) -> None:
    panel = check_specification(alice, source="yaml", yaml="run: ls\nwarp: 1\n")["plan"]

    with translation.override("zh-hans"):
        wanted = str(translated(phrase("import-unknown", key="warp")))
    assert wanted == "导入器不认识 warp。"
    assert wanted in html.unescape(re.sub(r"<[^>]+>", "", panel))


def test_the_page_of_an_imported_job_lists_its_remarks_in_chinese(alice: Client) -> None:
    script = "#!/bin/bash\n#SBATCH --gres=gpu:1 --magic\nsrun date\n"

    made = alice.post("/api/v1/import/sbatch/", script, content_type="text/plain").json()
    page = alice.get(f"/jobs/{made['jobs'][0]}/").content.decode()

    assert "script：调用了 srun，它在没有 Slurm 的情况下于本节点启动任务。" in page
    assert "不支持：--magic：--magic 不是 sbatch 的选项。" in page
