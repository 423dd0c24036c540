"""The calls on jobs and schedules, awaited."""

from __future__ import annotations

from ledgerstone.jobs.jobs import Jobs
from ledgerstone.jobs.schedules.schedules import Schedules
from ledgerstone.store.async_calls import AsyncCalls, awaited


class AsyncJobs(AsyncCalls[Jobs]):
    """`Jobs`, awaited."""

    enqueue = awaited(Jobs.enqueue)
    enqueue_many = awaited(Jobs.enqueue_many)
    get = awaited(Jobs.get)
    find = awaited(Jobs.find)
    counts = awaited(Jobs.counts)
    events = awaited(Jobs.events)
    explain = awaited(Jobs.explain)
    cancel = awaited(Jobs.cancel)
    retry = awaited(Jobs.retry)
    retry_all = awaited(Jobs.retry_all)
    pause = awaited(Jobs.pause)
    resume = awaited(Jobs.resume)
    limit = awaited(Jobs.limit)


class AsyncSchedules(AsyncCalls[Schedules]):
    """`Schedules`, awaited."""

    put = awaited(Schedules.put)
    put_new = awaited(Schedules.put_new)
    get = awaited(Schedules.get)
    list = awaited(Schedules.list)
    pause = awaited(Schedules.pause)
    resume = awaited(Schedules.resume)
    trigger = awaited(Schedules.trigger)
    preview = awaited(Schedules.preview)
    remove = awaited(Schedules.remove)
