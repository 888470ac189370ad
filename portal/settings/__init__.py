"""Django settings of Tessera; variable values come from the environment (``TesseraSettings``)."""

from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

from csp.constants import NONE, SELF

from portal.settings.backends import celery_broker, channel_layers, databases, mail_settings
from portal.settings.environment import PROJECT_ROOT, TesseraSettings, current_environment
from tenants.keyring import StoredFallbacks, StoredSecretKey

TESSERA: TesseraSettings = current_environment()

BASE_DIR: Path = PROJECT_ROOT
SECRET_KEY = TESSERA.secret_key or StoredSecretKey()
SECRET_KEY_FALLBACKS = (
    (*TESSERA.secret_key_next, *TESSERA.secret_key_fallbacks)
    if TESSERA.secret_key
    else StoredFallbacks()
)
DEBUG = TESSERA.debug
ALLOWED_HOSTS = list(TESSERA.allowed_hosts)

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "django_htmx",
    "csp",
    "channels",
    "tenants",
    "scheduling",
    "workers",
    "portal",
    # Content for trials and measurements; an installation may lack it.
    *(["demo"] if find_spec("demo") else []),
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "portal.web.preferences.LanguageMiddleware",
    "portal.web.preferences.ZoneMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "tenants.middleware.AuditContextMiddleware",
    "portal.sign_in.SignInMiddleware",
]

ROOT_URLCONF = "portal.urls"
ASGI_APPLICATION = "portal.asgi.application"
WSGI_APPLICATION = None
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "OPTIONS": {
            "loaders": [
                (
                    "django.template.loaders.cached.Loader",
                    [
                        "portal.template_loader.Loader",
                        "django.template.loaders.app_directories.Loader",
                    ],
                )
            ],
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "portal.web.context.frame",
            ],
            "builtins": ["portal.templatetags.translated", "portal.templatetags.layout"],
        },
    }
]

DATABASES = databases(TESSERA.database_url, idle_seconds=TESSERA.database_idle_seconds)
SNAPSHOT_DATABASE = "snapshot"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_USER_MODEL = "tenants.User"
AUTHENTICATION_BACKENDS = [
    "portal.sign_in.ThrottledBackend",
    "django.contrib.auth.backends.ModelBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 10},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
    {"NAME": "tenants.passwords.RepetitionValidator"},
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "login"

SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = TESSERA.https
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SECURE = TESSERA.https
CSRF_TRUSTED_ORIGINS = list(TESSERA.trusted_origins)
CSRF_FAILURE_VIEW = "portal.web.errors.csrf_failure"
SECURE_CONTENT_TYPE_NOSNIFF = True
# Browsers then use HTTPS only, for half a year after each visit.
SECURE_HSTS_SECONDS = 15_552_000 if TESSERA.https else 0
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:", "blob:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "object-src": [NONE],
        "base-uri": [NONE],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    },
}

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
LOCALE_PATHS = [BASE_DIR / "locale"]
MAIL_LETTER = "portal.letters.letter"
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
# Served directly from the checkout, so that no collectstatic step can be forgotten.
STATIC_ROOT = None
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG

globals().update(mail_settings(TESSERA.email_url))
DEFAULT_FROM_EMAIL = TESSERA.email_from

globals().update(celery_broker(TESSERA.redis_url))
CELERY_BEAT_SCHEDULE = {
    # A tick that was not processed before the next one is due is worthless.
    "round": {
        "task": "scheduling.tasks.run_round",
        "schedule": TESSERA.round_seconds,
        "options": {"queue": "rounds", "expires": max(TESSERA.round_seconds, 1.0)},
    },
    "notices": {
        "task": "workers.tasks.notify",
        "schedule": timedelta(seconds=5),
        "options": {"expires": 5},
    },
    "profiles": {
        "task": "scheduling.tasks.profile_models",
        "schedule": timedelta(seconds=10),
        "options": {"expires": 10},
    },
    "idling": {
        "task": "workers.tasks.look_at_idling",
        "schedule": timedelta(minutes=1),
        "options": {"expires": 60},
    },
    "early-stops": {
        "task": "workers.tasks.end_losing_runs",
        "schedule": timedelta(seconds=10),
        "options": {"expires": 10},
    },
    "use-of-devices": {
        "task": "workers.tasks.sum_up_use",
        "schedule": timedelta(minutes=1),
        "options": {"expires": 60},
    },
    "promises": {
        "task": "scheduling.tasks.audit_promises",
        "schedule": timedelta(hours=1),
        "options": {"expires": 3600},
    },
    "fleet": {
        "task": "workers.tasks.record_fleet",
        "schedule": timedelta(minutes=1),
        "options": {"expires": 60},
    },
    "fragmentation": {
        "task": "scheduling.tasks.forecast_fragmentation",
        "schedule": timedelta(minutes=10),
        "options": {"expires": 600},
    },
    "suspect-devices": {
        "task": "scheduling.tasks.mark_suspect_devices",
        "schedule": timedelta(minutes=5),
        "options": {"expires": 300},
    },
    "canaries": {
        "task": "scheduling.tasks.run_canaries",
        "schedule": timedelta(minutes=1),
        "options": {"expires": 60},
    },
    "quotas": {
        "task": "workers.tasks.look_at_quotas",
        "schedule": timedelta(minutes=1),
        "options": {"expires": 60},
    },
    "disks": {
        "task": "workers.tasks.look_at_disks",
        "schedule": timedelta(minutes=1),
        "options": {"expires": 60},
    },
    "usage": {
        "task": "portal.tasks.sum_up_usage",
        "schedule": timedelta(minutes=5),
        "options": {"expires": 300},
    },
    "housekeeping": {
        "task": "portal.tasks.run_maintenance",
        "schedule": timedelta(hours=1),
        "options": {"expires": 3600},
    },
}
# Opening a database costs more than an empty round; a worker reuses its connection for a while.
CELERY_DB_REUSE_MAX = 500
CHANNEL_LAYERS = channel_layers(TESSERA.redis_url)

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "portal.api.authentication.TokenAuthentication",
        "portal.api.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": [
        "portal.api.documents.StrictJSONParser",
        "portal.api.documents.YAMLParser",
    ],
    "EXCEPTION_HANDLER": "portal.api.errors.problem_response",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "UNAUTHENTICATED_USER": None,
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
# A checkpoint is copied to the next node of its job, unless it exceeds this size or time.
CHECKPOINT_TRANSFER_BYTES = TESSERA.checkpoint_bytes
CHECKPOINT_TRANSFER_SECONDS = TESSERA.checkpoint_seconds

TENANT_UIDS = TESSERA.tenant_uids

# Rule sets of `simulate` by name (``RuleSet``), and trace formats that only they need
# (``TraceFormat``). Reproductions of published artefacts are not part of every installation.
SIMULATION_RULES: dict[str, str] = {
    "crius": "benchmarks.reproductions.crius.world.RULES",
    "events": "scheduling.core.simulation.workload_run.run_workload",
    "pollux": "benchmarks.reproductions.pollux.world.RULES",
    "sia": "benchmarks.reproductions.sia.world.RULES",
}
SIMULATION_FORMATS: dict[str, str] = {
    "pollux": "benchmarks.reproductions.pollux.traces.FORMAT",
    "sia": "benchmarks.reproductions.sia.traces.FORMAT",
}

SPECTACULAR_SETTINGS = {
    # Further response types are declared with their operation.
    "RENDERER_WHITELIST": ["rest_framework.renderers.JSONRenderer"],
    "TITLE": "Tessera",
    "DESCRIPTION": "Jobs, nodes, virtual clusters and access to them.",
    "VERSION": "1",
    # Job specifications are described in JSON schema 2020-12, which 3.0 does not support.
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        "asyncssh": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},
        # Two lines for every round repeat the facts of the round's row.
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
    },
}
