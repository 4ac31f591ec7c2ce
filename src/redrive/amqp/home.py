"""What became of jobs from a broker, where that is more than a plain success: they come home as rows first.

The ordinary writer writes it; this puts the row before each outcome, in the same transaction. A message is
acknowledged once that is committed and not before, so nothing is lost whoever ends in between; what was decided
already is told by the row or its failures, and is not decided twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redrive.amqp.parcel import Parcel, of_home
from redrive.drivers import awaited
from redrive.statements import Statement, arun, named, run
from redrive.writer import Writer, complete

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from redrive.job import ClaimedJob
    from redrive.outcome import Finished


class Home(Writer):
    """Writes outcomes of a worker whose jobs come from a broker."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.on_home: Callable[[list[Parcel]], object] = lambda _parcels: None
        """Told of jobs whose outcome is written: their messages may go."""
        self.before_bringing: Callable[[Parcel], Awaitable[object]]
        """Says that this worker lives, so that its death is noticed."""
        self._owed: dict[tuple[int, int], Parcel] = {}

    async def tick(self) -> float:
        """Write what there is, and let those messages go about which everything is written."""
        try:
            return await super().tick()
        finally:
            waiting = set(self.held())
            written = [key for key in self._owed if key[0] not in waiting]
            if written:
                self.on_home([self._owed.pop(key) for key in written])

    def _take(self) -> list[Finished]:
        batch = super()._take()  # also what came while this turn was writing
        for one in batch:
            self._owed[one.job.id, one.job.claim] = one.job
        return batch

    async def bring(self, parcel: Parcel) -> bool:
        """Bring a job home that has not ended, for its trial or since it takes long; False where it is settled."""
        await self.before_bringing(parcel)
        return bool(await self._control.run(_come_home(self._control.schema, self._worker, [parcel])))

    async def settled(self, parcels: Sequence[Parcel]) -> set[tuple[int, int]]:
        """Of messages that were delivered before: id and claim of those about which everything is said."""
        params = {
            "ids": [each.id for each in parcels],
            "claims": [each.claim for each in parcels],
            "kept": [each.kept for each in parcels],
        }
        rows = await self._control.run(named("settled_at_home", self._control.schema, **params))
        return {(row.id, row.claim) for row in rows}

    async def _say(self, statement: Statement[Any], batch: Sequence[Finished]) -> list[Any]:
        away = [one.job for one in batch if not one.job.home]
        if not away:
            return await super()._say(statement, batch)
        first = _come_home(self._control.schema, self._worker, away)
        return await self._control.run_both(first, lambda _rows: statement)


def complete_from_afar(job: ClaimedJob, connection: Any, result: Any) -> Any:
    """Record a job's success in the transaction of the user's *connection*, where its row comes home first.

    Raises:
        As :func:`redrive.writer.complete`.
    """
    if not isinstance(job, Parcel) or job.home:
        return complete(job, connection, result)
    first = _come_home(job.schema, job.worker, [job])
    if awaited(connection):

        async def both() -> None:
            await arun(connection, first)
            await complete(job, connection, result)

        return both()
    run(connection, first)
    return complete(job, connection, result)


def _come_home(schema: str, worker: str, parcels: Sequence[Parcel]) -> Statement[Any]:
    return named("come_home", schema, worker=worker, **of_home(parcels))
