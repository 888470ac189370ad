"""A node service in a separate process that a test kills: ``python -m ... DATABASE DATA_DIR``."""

import os
import sys
import threading


def main() -> None:
    """Manage the nodes of a database file until killed."""
    database, data_dir = sys.argv[1:]
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "portal.settings.test",
        "TESSERA_DATABASE_URL": f"sqlite:///{database}",
        "TESSERA_DATA_DIR": data_dir,
    }
    import django

    django.setup()
    from dataclasses import replace

    from workers.celery_steps import over_ssh
    from workers.conf import worker_settings
    from workers.node_service.service import NodeService
    from workers.node_service.thread import NodeServiceThread

    settings = replace(worker_settings(), tick=0.2, look_every=0.2, first_backoff=0.1)
    service = NodeServiceThread(lambda: NodeService(settings=settings, connect=over_ssh()))
    service.start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
