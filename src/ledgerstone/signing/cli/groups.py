"""`ledgerstone signing group`: who signs together, how many of them, and under which policy."""

from __future__ import annotations

import time
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from ledgerstone.console import output
from ledgerstone.console.call import Call, command, flag
from ledgerstone.console.groups import group as command_group
from ledgerstone.console.output import Text
from ledgerstone.console.pages import LIST_ROWS, LimitOption
from ledgerstone.errors import BadInput, SignatureInvalid
from ledgerstone.signing import check_extra
from ledgerstone.signing.cli import views
from ledgerstone.signing.cli.documents import bytes_of, record
from ledgerstone.signing.cli.opening import DataOption, reading_of, signing_of
from ledgerstone.signing.cli.pages import CursorOption, cursor_of, encoded
from ledgerstone.signing.cli.private_key import KeyFileOption, private_key
from ledgerstone.signing.hexadecimal import in_hex
from ledgerstone.signing.kaspa import Network, parse_kas
from ledgerstone.signing.values import GroupConfig, GroupId, GroupMetadata, GroupPolicy

PEER_ENTRY = "peer:"
SESSION_SECONDS = 600
DUST_SOMPI = 600
FEE_RATE = 1
FINALITY = 10

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The group id, 64 hex digits.")]


class NetworkName(Enum):
    """A network by its name."""

    MAINNET = "mainnet"
    TESTNET = "testnet"
    DEVNET = "devnet"
    SIMNET = "simnet"


ThresholdOption = Annotated[
    int, typer.Option("--threshold", metavar="M", min=1, help="How many must sign.")
]
MemberOption = Annotated[
    list[str],
    typer.Option(
        "--member", metavar="PEER=KEY", help="A member and its public key; again for more."
    ),
]
NameOption = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="What people call the group.")
]
NetworkOption = Annotated[
    NetworkName, typer.Option("--network", help="The network of its addresses.")
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="ADDRESS", help="Pay only such addresses; again for more."),
]
MinOption = Annotated[
    str | None, typer.Option("--min", metavar="KAS", help="The smallest payment.")
]
MaxOption = Annotated[str | None, typer.Option("--max", metavar="KAS", help="The largest payment.")]
DailyOption = Annotated[
    str | None, typer.Option("--daily", metavar="KAS", help="The most in a UTC day.")
]
RequireReasonOption = Annotated[
    bool, flag("--require-reason", help="Pay only events that give a reason.")
]
TimeoutOption = Annotated[
    int, typer.Option("--timeout", metavar="SECONDS", min=1, help="The time of a request.")
]


def new(
    call: Call,
    *,
    threshold: ThresholdOption,
    member: MemberOption,
    name: NameOption = None,
    network: NetworkOption = NetworkName.MAINNET,
    allow: AllowOption = None,
    min_amount: MinOption = None,
    max_amount: MaxOption = None,
    daily: DailyOption = None,
    require_reason: RequireReasonOption = False,
    timeout: TimeoutOption = SESSION_SECONDS,
    data: DataOption = None,
) -> None:
    """Make a group of members by their public keys, and store it.

    `group add` takes every field of a group from a file.

    Example: ledgerstone signing group new --threshold 2 --member ann=KEY1
    --member bob=KEY2 --member cyd=KEY3 --daily 500
    """
    keys = _members(member)
    config = GroupConfig(
        network_id=Network[network.name].value,
        threshold_m=threshold,
        threshold_n=len(keys),
        member_pubkeys=tuple(keys.values()),
        fee_rate_sompi_per_gram=FEE_RATE,
        finality_blue_score_threshold=FINALITY,
        dust_threshold_sompi=DUST_SOMPI,
        min_recipient_amount_sompi=DUST_SOMPI,
        session_timeout_seconds=timeout,
        group_metadata=GroupMetadata(
            creation_timestamp_nanos=time.time_ns(),
            group_name=name,
            extra={f"{PEER_ENTRY}{peer}": key.hex() for peer, key in sorted(keys.items())},
        ),
        policy=GroupPolicy(
            allowed_destinations=tuple(allow or ()),
            min_amount_sompi=_sompi(min_amount),
            max_amount_sompi=_sompi(max_amount),
            max_daily_volume_sompi=_sompi(daily),
            require_reason=require_reason,
        ),
    )
    _store(call, data, config)


def _members(given: list[str]) -> dict[str, bytes]:
    keys: dict[str, bytes] = {}
    for each in given:
        peer, equals, key = each.partition("=")
        if not peer or not equals:
            hint = "as in --member ann=KEY; `ledgerstone signing group key` prints a KEY"
            raise BadInput(f"a member is PEER=KEY, not {each!r:.80}", hint=hint)
        if peer in keys:
            raise BadInput(f"the member {peer!r} is there twice")
        keys[peer] = bytes_of(key, f"the key of {peer}")
    return keys


def _sompi(kas: str | None) -> int | None:
    return None if kas is None else parse_kas(kas)


def add(
    call: Call,
    *,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The group in JSON, bytes in hex; - reads stdin.")
    ],
    data: DataOption = None,
) -> None:
    """Store a group from a file, as `group show --json` prints one.

    Example: ledgerstone signing group add group.json
    """
    _store(call, data, record(GroupConfig, file, "the group"))


def _store(call: Call, data: Path | None, config: GroupConfig) -> None:
    with signing_of(call, data, make=True) as signing:
        group_id = signing.upsert_group_config(config)
    facts = {"group_id": group_id.hex(), "threshold": config.threshold_m}
    facts["members"] = config.threshold_n
    quorum = f"{config.threshold_m} of {config.threshold_n}"
    seen = Text.assemble(group_id.hex(), ("  stored", "green"), (f", {quorum}", "dim"))
    output.show(facts, seen, json=call.json)


def list_(
    call: Call,
    *,
    limit: LimitOption = LIST_ROWS,
    cursor: CursorOption = None,
    data: DataOption = None,
) -> None:
    """List the groups, by their ids.

    Example: ledgerstone signing group list
    """
    after = cursor_of(cursor)
    with reading_of(call, data) as signing:
        page = signing.list_group_configs(after=after, rows_max=limit)
    seen: RenderableType = views.groups(page.groups)
    if not page.groups:
        seen = "there are no groups"
    listed = [{"group_id": key.hex(), "group": in_hex(each)} for key, each in page.groups.items()]
    output.show({"groups": listed, "next": encoded(page.after)}, seen, json=call.json)
    output.say_next(encoded(page.after), json=call.json)


def show(call: Call, group_id: GroupArgument, data: DataOption = None) -> None:
    """Show a group: its members and its policy.

    Example: ledgerstone signing group show GROUP
    """
    wanted = GroupId(bytes_of(group_id, "a group id"))
    with reading_of(call, data) as signing:
        config = signing.get_group_config(wanted)
    output.show(in_hex(config), views.group(wanted, config), json=call.json)


def key(call: Call, key_file: KeyFileOption = None) -> None:
    """Print the public key that belongs to a private key.

    Example: ledgerstone signing group key --key-file ann.key
    """
    secret = private_key(key_file)
    check_extra()
    from ledgerstone.signing.schnorr import public_key

    try:
        public = public_key(secret)
    except SignatureInvalid as error:
        raise BadInput(f"there is no such private key: {error.message}") from error
    output.show({"public_key": public.hex()}, Text(public.hex()), json=call.json)


app = command_group(
    "Store, list and show groups, and the public keys of members.\n\n"
    "Example: ledgerstone signing group list"
)
app.command("list")(command(list_))
for function in (new, add, show, key):
    app.command()(command(function))
