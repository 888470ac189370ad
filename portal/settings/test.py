"""Settings of the test run: no broker, one database alias, cheap password hashes."""

from dataclasses import replace

from portal import settings as base
from portal.settings import *  # noqa: F403 this module is the settings with a few changes
from portal.settings.backends import celery_broker, channel_layers

# Tests that need Redis start their own.
TESSERA = replace(base.TESSERA, redis_url="memory://", secret_key="only-for-tests-" + "0" * 32)
SECRET_KEY = TESSERA.secret_key
SECRET_KEY_FALLBACKS = TESSERA.secret_key_fallbacks
globals().update(celery_broker(TESSERA.redis_url))
CHANNEL_LAYERS = channel_layers(TESSERA.redis_url)

# Each worker of pytest-xdist has its own database in memory; pytest-django reuses this name.
for _database in DATABASES.values():  # noqa: F405
    if _database["ENGINE"].endswith("sqlite3"):
        _database.setdefault("TEST", {}).setdefault("NAME", ":memory:")

# Tests run inside one transaction on one connection; a second one would not see their rows.
SNAPSHOT_DATABASE = "default"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# Every test client builds its own chain of middleware; none of them needs a scan of all files.
WHITENOISE_AUTOREFRESH = True
