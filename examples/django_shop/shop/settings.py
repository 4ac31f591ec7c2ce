"""Settings: what redrive needs is one line of INSTALLED_APPS. DATABASE_URL says where the database is."""

import os

from psycopg.conninfo import conninfo_to_dict

_place = conninfo_to_dict(os.environ.get("DATABASE_URL", "dbname=shop"))

SECRET_KEY = os.environ.get("SECRET_KEY", "only for trying out")
DEBUG = True
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "redrive.django",
    "shop",
]

DATABASES = {
    "default": {"ENGINE": "django.db.backends.postgresql", "NAME": _place.pop("dbname"), "OPTIONS": _place},
}

REDRIVE = {"APP_VERSION": os.environ.get("APP_VERSION", "")}  # all of it may be left out

# Django 6; before that, django_tasks of the package django-tasks reads the same.
TASKS = {"default": {"BACKEND": "redrive.django.tasks.RedriveBackend"}}

EMAIL_BACKEND = os.environ.get("EMAIL_BACKEND", "django.core.mail.backends.console.EmailBackend")

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
