"""Where jobs are measured."""

from __future__ import annotations

from bench import places
from bench.places import Opener

PLACES: dict[str, Opener] = {
    "postgres": places.postgres,
    "sqlite": places.sqlite,
    "mysql": places.mysql("job", "job_event"),
}
