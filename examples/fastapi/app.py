"""Sign-ups by FastAPI: the user and the job that welcomes them are one commit. Async, SQLAlchemy over asyncpg.

redrive migrate
export REDRIVE_UI_PASSWORD=...  # at least eight characters: the desk lets nobody in without
uvicorn app:app                 # http://localhost:8000/docs, and the desk at /jobs/
WORKER=no uvicorn app:app       # where `redrive worker app:queue` runs by itself
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from redrive import ClaimedJob, Queue
from redrive.inside import working
from redrive.web import desk

queue = Queue()
engine = create_async_engine(make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+asyncpg"))
Sessions = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    """The application's tables."""


class User(Base):
    """Somebody who has signed up."""

    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)
    welcomed_at: Mapped[str | None]


@queue.handler("welcome", timeout=30)
async def welcome(payload: dict[str, Any], job: ClaimedJob) -> None:
    """Welcome a user. What is written here and that the job is done are one commit as well."""
    async with Sessions() as session:
        user = await session.get_one(User, payload["user"])
        user.welcomed_at = datetime.now(UTC).isoformat()
        await session.flush()
        await job.complete(session)
        await session.commit()


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Make the tables, and run a worker beside the routes unless there is one elsewhere."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with AsyncExitStack() as stack:
        if os.environ.get("WORKER") != "no":
            await stack.enter_async_context(working(queue, concurrency=4, grace=5))
        yield
    await engine.dispose()
    queue.close()


async def session_of_request() -> AsyncIterator[AsyncSession]:
    """Give each request a session. The route commits: what runs after the answer was sent is too late to fail."""
    async with Sessions() as session:
        yield session


class NewUser(BaseModel):
    """What a sign-up sends."""

    email: str


app = FastAPI(lifespan=lifespan)
app.mount("/jobs", desk(queue))


@app.post("/users", status_code=201)
async def sign_up(new: NewUser, session: Annotated[AsyncSession, Depends(session_of_request)]) -> dict[str, int]:
    """Add a user and have them welcomed: both, or neither."""
    user = User(email=new.email)
    session.add(user)
    try:
        await session.flush()  # gives the id, which the job needs
    except IntegrityError as error:
        raise HTTPException(409, "there is such a user already") from error
    await welcome.enqueue_async({"user": user.id}, connection=session, key=f"welcome:{user.id}")
    if new.email.endswith(".invalid"):
        raise HTTPException(422, "no mail gets there")  # rolled back, and so is the job
    await session.commit()
    return {"id": user.id}


@app.get("/users/{number}")
async def show(number: int, session: Annotated[AsyncSession, Depends(session_of_request)]) -> dict[str, Any]:
    """Show a user."""
    user = await session.get(User, number)
    if user is None:
        raise HTTPException(404, "no such user")
    return {"email": user.email, "welcomed": user.welcomed_at is not None}
