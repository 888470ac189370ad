"""Users and messages for tests of live updates."""

from channels.layers import get_channel_layer

from portal.live.publishing import MESSAGE_TYPE
from tenants.models import User
from tenants.roles import Role
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.tenants import make_tenant


def make_job_and_users():
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(tenant=make_tenant("vision", alice=Role.MEMBER))
    make_tenant("language", bob=Role.LEAD)
    job = make_job()
    people = {user.username: user for user in User.objects.all()}
    return job, people


async def publish_to_group(group, topic, data, version=1):
    await get_channel_layer().group_send(
        group,
        {"type": MESSAGE_TYPE, "group": group, "topic": topic, "version": version, "data": data},
    )
