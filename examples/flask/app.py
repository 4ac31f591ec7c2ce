"""Sign-ups by Flask: the user and the job that welcomes them are one commit. Sync, SQLAlchemy over psycopg2.

redrive migrate
export REDRIVE_UI_PASSWORD=...                  # at least eight characters: the desk lets nobody in without
redrive worker app:queue
gunicorn --preload --workers 2 app:app          # the desk is at /jobs/
WORKER=yes gunicorn --workers 2 app:app         # for the very small: a worker in each process, see gunicorn.conf.py
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from flask import Flask, g, request
from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from redrive import ClaimedJob, Queue
from redrive.web import as_wsgi, desk

queue = Queue()
engine = create_engine(make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg2"))
Sessions = sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    """The application's tables."""


class User(Base):
    """Somebody who has signed up."""

    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)
    welcomed_at: Mapped[str | None]


@queue.handler("welcome", timeout=30)
def welcome(payload: dict[str, Any], job: ClaimedJob) -> None:
    """Welcome a user. What is written here and that the job is done are one commit as well."""
    with Sessions() as session:
        user = session.get_one(User, payload["user"])
        user.welcomed_at = datetime.now(UTC).isoformat()
        session.flush()
        job.complete(session)
        session.commit()


def create_app() -> Flask:
    """Make the application. What it enqueues here, before any fork, goes over a connection that no child will share."""
    app = Flask(__name__)
    Base.metadata.create_all(engine)
    queue.enqueue("started", {"pid": os.getpid()}, key="started")
    engine.dispose()  # so that no child of a fork shares the engine's connection either
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/jobs": as_wsgi(desk(queue))})  # type: ignore[method-assign] # Flask's own way

    @app.teardown_appcontext
    def close(_error: BaseException | None) -> None:
        if "session" in g:
            g.pop("session").close()  # rolls back what no route has committed

    @app.post("/users")
    def sign_up() -> tuple[dict[str, Any], int]:
        """Add a user and have them welcomed: both, or neither."""
        email, session = request.get_json()["email"], session_of_request()
        user = User(email=email)
        session.add(user)
        try:
            session.flush()  # gives the id, which the job needs
        except IntegrityError:
            return {"error": "there is such a user already"}, 409
        welcome.enqueue({"user": user.id}, connection=session, key=f"welcome:{user.id}")
        if email.endswith(".invalid"):
            return {"error": "no mail gets there"}, 422  # rolled back, and so is the job
        session.commit()
        return {"id": user.id, "pid": os.getpid()}, 201

    @app.post("/feedback")
    def feedback() -> tuple[dict[str, Any], int]:
        """Have somebody read it. Where nothing else is written, the queue's own connection does."""
        job = queue.enqueue("read_feedback", request.get_json())
        return {"job": job.id, "pid": os.getpid()}, 202

    @app.get("/users/<int:number>")
    def show(number: int) -> tuple[dict[str, Any], int]:
        """Show a user."""
        user = session_of_request().get(User, number)
        if user is None:
            return {"error": "no such user"}, 404
        return {"email": user.email, "welcomed": user.welcomed_at is not None}, 200

    return app


@queue.handler("read_feedback")
def read_feedback(payload: dict[str, Any]) -> None:
    """Show it to somebody."""
    print(f"somebody says: {payload['text']}")


@queue.handler("started")
def started(payload: dict[str, Any]) -> None:
    """Note that the application was started."""
    print(f"started as process {payload['pid']}")


def session_of_request() -> Session:
    """Give each request a session."""
    if "session" not in g:
        g.session = Sessions()
    found: Session = g.session
    return found


app = create_app()
