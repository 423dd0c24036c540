"""The calls of messaging in an asyncio transaction."""

from __future__ import annotations

from ledgerstone.messaging.failed.failed import Failed
from ledgerstone.messaging.inbox.inbox import Inbox
from ledgerstone.messaging.outbox.outbox import Outbox
from ledgerstone.store.async_calls import AsyncCalls, awaited


class AsyncOutbox(AsyncCalls[Outbox]):
    """`Outbox`, awaited."""

    publish = awaited(Outbox.publish)
    publish_many = awaited(Outbox.publish_many)
    find = awaited(Outbox.find)
    backlog = awaited(Outbox.backlog)
    lanes = awaited(Outbox.lanes)
    pause = awaited(Outbox.pause)
    resume = awaited(Outbox.resume)
    resume_parked = awaited(Outbox.resume_parked)
    gone = awaited(Outbox.gone)
    discard = awaited(Outbox.discard)
    cleanup = awaited(Outbox.cleanup)


class AsyncInbox(AsyncCalls[Inbox]):
    """`Inbox`, awaited."""

    find = awaited(Inbox.find)
    count = awaited(Inbox.count)
    cleanup = awaited(Inbox.cleanup)


class AsyncFailed(AsyncCalls[Failed]):
    """`Failed`, awaited."""

    find = awaited(Failed.find)
    last_id = awaited(Failed.last_id)
    get = awaited(Failed.get)
    count = awaited(Failed.count)
    groups = awaited(Failed.groups)
    retry = awaited(Failed.retry)
    retry_all = awaited(Failed.retry_all)
    remove = awaited(Failed.remove)
    remove_all = awaited(Failed.remove_all)
