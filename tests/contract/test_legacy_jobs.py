"""The old table of jobs, on every database, and as each database may have spelled it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text

from ledgerstone.jobs import JobRow
from ledgerstone.ledger import Ledger
from ledgerstone.testing.fixtures import new_home
from tests.contract.jobs.legacy import LegacyJob, LegacyJobContract, make_legacy
from tests.contract.store.migrations import never_migrating

ID = "8f0e1a2b-9a3b-4c5d-8e7f-000000000001"
NOON = datetime(2025, 7, 1, 12, 0, tzinfo=UTC)
QUARTER_PAST = datetime(2025, 7, 1, 12, 15, 0, 250_000, tzinfo=UTC)


class TestLegacyJobs(LegacyJobContract):
    """Its rows become jobs."""


@pytest.fixture
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """A ledger on an empty database of the kind that the test is marked with."""
    for home in new_home(request, request.param, tmp_path):
        with never_migrating(home.url) as ledger:
            yield ledger


def taken_over(ledger: Ledger, columns: str, values: str, *before: str) -> JobRow:
    """The job that a row of a table with such columns becomes."""
    with ledger.database.engine.begin() as connection:
        for statement in before:
            connection.execute(text(statement))
        connection.execute(text(f"CREATE TABLE jobs ({columns})"))
        connection.execute(text(f"INSERT INTO jobs VALUES ({values})"))  # noqa: S608 - ours
    ledger.migrate()
    with ledger.reading() as tx:
        return tx.jobs.get(ID)


@pytest.mark.postgres
@pytest.mark.parametrize("bare", ["postgres"], indirect=True)
def test_postgresql_without_a_zone(bare: Ledger) -> None:
    """Moments without a zone are taken to be in UTC; JSON that is not binary is copied too."""
    columns = (
        "id UUID PRIMARY KEY, status TEXT, stage VARCHAR(50), progress NUMERIC, result JSON, "
        "error TEXT, created_at TIMESTAMP, updated_at TIMESTAMPTZ"
    )
    moments = "'2025-07-01 12:00', '2025-07-01 14:15:00.25+02'"

    job = taken_over(bare, columns, f"'{ID}', 'done', '', 12.5, '[1]', NULL, {moments}")

    assert (job.created_at, job.updated_at) == (NOON, QUARTER_PAST)
    assert (job.progress, job.result, job.last_error_code) == (0.125, [1], "legacy_status")


@pytest.mark.mysql
@pytest.mark.parametrize("bare", ["mysql"], indirect=True)
def test_mariadb_in_its_own_types(bare: Ledger) -> None:
    """A TIMESTAMP means the same moment whatever the zone of the session; a UUID is an id."""
    columns = (
        "id UUID PRIMARY KEY, status ENUM('pending', 'completed'), stage TINYTEXT, "
        "progress TINYINT UNSIGNED, result JSON, error TEXT, created_at TIMESTAMP NULL, "
        "updated_at DATETIME(3)"
    )
    moments = "'2025-07-01 14:00:00', '2025-07-01 12:15:00.250'"
    zone = "SET time_zone = '+02:00'"

    job = taken_over(bare, columns, f"'{ID}', 'completed', 'x', 7, '{{}}', '', {moments}", zone)

    assert (job.created_at, job.updated_at) == (NOON, QUARTER_PAST)
    assert (job.progress, job.result, job.last_error_code) == (0.07, {}, None)


@pytest.mark.mysql
@pytest.mark.parametrize("bare", ["mysql"], indirect=True)
def test_mariadb_interrupted_after_the_renaming(bare: Ledger) -> None:
    """Where DDL commits by itself, a table that was renamed and not yet copied is copied."""
    make_legacy(bare, [LegacyJob(number=1)])
    with bare.database.engine.begin() as connection:
        connection.execute(text("RENAME TABLE jobs TO jobs_legacy"))

    bare.migrate()

    with bare.reading() as tx:
        assert tx.jobs.get(LegacyJob(number=1).id).type == "legacy"


@pytest.mark.parametrize("bare", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("created", "updated"),
    [
        ("'2025-07-01 12:00:00'", "'2025-07-01 12:15:00.250000'"),
        ("'2025-07-01T12:00:00Z'", "'2025-07-01T14:15:00.250+02:00'"),
        ("'2025-07-01 10:00:00-02:00'", "'2025-07-01 12:15:00.250+00:00'"),
        ("1751371200", "1751372100.25"),
    ],
)
def test_sqlite_in_any_spelling(bare: Ledger, created: str, updated: str) -> None:
    """Texts with and without a zone and numbers are the moments that they mean."""
    columns = (
        "id UUID PRIMARY KEY, status, stage, progress REAL, result JSONB, error, "
        "created_at TIMESTAMPTZ, updated_at"
    )

    job = taken_over(
        bare, columns, f"'{ID}', 'pending', 5, 0.5, 'no json', '', {created}, {updated}"
    )

    assert (job.created_at, job.updated_at) == (NOON, QUARTER_PAST)
    assert (job.progress, job.result) == (0.5, "no json")
