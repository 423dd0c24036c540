"""Settings: `ledgerstone.toml` and the environment, checked once, all problems reported together.

Each setting is declared in the classes of this package and nowhere else: its default, its bounds
and its description are read from there by the loader (`reading`), by the problems it reports and by
the reference document.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar, cast

import msgspec
from msgspec import Meta

from ledgerstone.errors import SettingsError
from ledgerstone.settings.blobs import BlobSettings
from ledgerstone.settings.messaging import (
    DestinationSettings,
    MessagingSettings,
    SubscriptionSettings,
    masked,
)
from ledgerstone.settings.protocols import ProtocolSettings
from ledgerstone.settings.reading import DeclaredSettings, Reading
from ledgerstone.settings.registered import Named, rooms_of
from ledgerstone.settings.sections import EngineSettings, JobSettings, LogSettings, StoreSettings
from ledgerstone.settings.signing import SigningSettings

__all__ = [
    "BlobSettings",
    "DestinationSettings",
    "EngineSettings",
    "JobSettings",
    "LogSettings",
    "MessagingSettings",
    "ProtocolSettings",
    "Settings",
    "SigningSettings",
    "StoreSettings",
    "SubscriptionSettings",
    "reference",
]

S = TypeVar("S", bound=msgspec.Struct)

# The URL as SQLAlchemy parses it; a password with a raw "@" is refused, not half understood.
_URL_PATTERN = (
    r"^(sqlite://([/?].*)?"
    r"|(postgresql(\+psycopg)?|(mysql|mariadb)(\+(pymysql|mysqldb))?)://"
    r"([^:/]*(:[^@]*)?@)?(\[[^/?]+\]|[^/:?@]*)(:[0-9]{1,5})?([/?].*)?)\Z"
)
_URL_ALLOWED = (
    "sqlite:///file (a fourth slash makes the path absolute) or"
    " scheme://user:password@host:port/database, special characters of the password"
    " percent-encoded, with scheme postgresql, postgresql+psycopg, mysql, mysql+pymysql,"
    " mysql+mysqldb, mariadb, mariadb+pymysql or mariadb+mysqldb"
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set, with its defaults.

    - `load` is the edge and checks; building an instance by hand does not.
    - The password in `url` does not appear in `repr`.
    """

    url: Annotated[
        str,
        Meta(
            pattern=_URL_PATTERN,
            extra={"allowed": _URL_ALLOWED, "secret": True},
            description="The database that keeps everything.",
        ),
    ] = "sqlite:///.ledgerstone/ledgerstone.db"
    rooms: Annotated[
        list[str],
        Meta(
            description="Rooms beside those of Ledgerstone, by the names under which they are"
            " installed; each may have a section of its name."
        ),
    ] = []
    store: StoreSettings = StoreSettings()
    engine: EngineSettings = EngineSettings()
    jobs: JobSettings = JobSettings()
    messaging: MessagingSettings = MessagingSettings()
    protocols: ProtocolSettings = ProtocolSettings()
    signing: SigningSettings = SigningSettings()
    blobs: BlobSettings = BlobSettings()
    log: LogSettings = LogSettings()

    @classmethod
    def load(
        cls,
        path: Path | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        with_rooms: Sequence[Named] = (),
        **overrides: object,
    ) -> Settings:
        """Settings from overrides, before environment, before file, before defaults.

        - `path` and `$LEDGERSTONE_CONFIG` name a file that must exist; without them
          `ledgerstone.toml` in the working directory is read if it is there.
        - Overrides have the shape of the file: `load(url=..., engine={"concurrency": 4})`.
        - A wrong value is a problem also where a later source replaces it.
        - All problems of all sources are raised together, as one `SettingsError`.
        - `with_rooms` have their sections too, as those that the setting `rooms` names.
        """
        environ = os.environ if environ is None else environ
        reading = _read(
            _KNOWN if cls is Settings else DeclaredSettings(cls), path, environ, overrides
        )
        named = cast("list[str]", reading.values["rooms"])
        try:
            rooms = [*with_rooms, *rooms_of(named)]
        except SettingsError as error:
            raise SettingsError([*reading.problems, *error.problems]) from error
        if any(room.settings is not None for room in rooms):
            reading = _read(DeclaredSettings(_with_sections(cls, rooms)), path, environ, overrides)
        reading.compare()
        if reading.problems:
            raise SettingsError(reading.problems)
        return msgspec.convert(reading.tree(), reading.declared)

    def section(self, name: str, kind: type[S]) -> S:
        """The section of a room; its defaults where the settings were loaded without the room."""
        found = getattr(self, name, None)
        return found if isinstance(found, kind) else kind()

    @property
    def url_masked(self) -> str:
        """The URL as it may be logged: `***` where the password stands."""
        return masked(self.url)

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("url", self.url_masked), *super().__rich_repr__()[1:]]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Settings({fields})"


def _read(
    known: DeclaredSettings[Settings],
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, object],
) -> Reading[Settings]:
    """The settings of all sources together."""
    reading: Reading[Settings] = Reading(known)
    reading.take_file(path, environ)
    reading.take_environment(environ)
    reading.take_tree("argument ", overrides)
    return reading


def _with_sections(base: type[Settings], rooms: Sequence[Named]) -> type[Settings]:
    """Settings that have the sections of these rooms, too."""
    sections = {room.name: room.settings for room in rooms if room.settings is not None}
    taken = sorted(set(sections) & set(base.__struct_fields__))
    if taken:
        raise SettingsError(
            [f"rooms: {taken[0]} is a section of Ledgerstone; allowed: another name"]
        )
    fields = [(name, kind, kind()) for name, kind in sections.items()]
    made = msgspec.defstruct(
        base.__name__, fields, bases=(base,), module=base.__module__, frozen=True, kw_only=True
    )
    return cast("type[Settings]", made)


def reference() -> str:
    """The reference document, in Markdown."""
    return _KNOWN.reference()


_KNOWN = DeclaredSettings(Settings)
