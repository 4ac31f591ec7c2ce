"""The example's settings, with a second Postgres and a SQLite beside its own."""

import os

from psycopg.conninfo import conninfo_to_dict

from shop.settings import *  # noqa: F403 - settings are a module's names


def database(url, **more):
    given = conninfo_to_dict(url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    return {
        "ENGINE": "django.db.backends.postgresql",
        **{name: str(given.pop(key, "") or "") for name, key in names.items()},
        "OPTIONS": {**given, **more},
    }


DATABASES = {
    "default": database(os.environ["DATABASE_URL"]),
    "other": database(os.environ["OTHER_URL"]),
    "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
DEBUG = False
ROOT_URLCONF = "shop.urls"
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
