"""Groups: which are accepted, and which peer signs with which member key.

The configuration of a group lists member keys, votes and signatures name peers. The entries
`peer:<peer id>` = `<member key in hex>` of the group's metadata join the two. The group id is a
hash of all of it, so it covers them. In a group without such entries a peer's id is its key in hex.
"""

from __future__ import annotations

from collections.abc import Mapping

from ledgerstone.errors import BadInput, NotAMember, SignatureInvalid
from ledgerstone.signing.kaspa import Network, parse_address
from ledgerstone.signing.keys import check_peer_id
from ledgerstone.signing.schnorr import PublicKey, parse_public_key
from ledgerstone.signing.values import GroupConfig, PeerId

MEMBERS_MAX = 100
SESSION_TIMEOUT_SECONDS_MAX = 600
PEER_ENTRY = "peer:"

Roster = Mapping[PeerId, PublicKey]
"""The members of a group: the key of each peer."""


def check_group(config: GroupConfig) -> Roster:
    """The members of a group that may be stored; BadInput lists everything that is wrong."""
    problems = [*_problems(config)]
    try:
        members = roster(config)
    except BadInput as error:
        problems.append(error.message)
        members = {}
    if problems:
        raise BadInput("; ".join(problems))
    return members


def _problems(config: GroupConfig) -> list[str]:
    policy = config.policy
    least, most = policy.min_amount_sompi, policy.max_amount_sompi
    wrong = {
        "threshold_m is from 1 to threshold_n": not 0 < config.threshold_m <= config.threshold_n,
        f"a group has at most {MEMBERS_MAX} members": config.threshold_n > MEMBERS_MAX,
        f"threshold_n is {config.threshold_n}, with {len(config.member_pubkeys)} member keys": (
            config.threshold_n != len(config.member_pubkeys)
        ),
        f"session_timeout_seconds is from 1 to {SESSION_TIMEOUT_SECONDS_MAX}": (
            not 0 < config.session_timeout_seconds <= SESSION_TIMEOUT_SECONDS_MAX
        ),
        f"{config.network_id} is no network": config.network_id not in {n.value for n in Network},
        "min_amount_sompi is above max_amount_sompi": (
            least is not None and most is not None and least > most
        ),
    }
    problems = [problem for problem, found in wrong.items() if found]
    return problems + _destination_problems(config)


def _destination_problems(config: GroupConfig) -> list[str]:
    problems = []
    for text in config.policy.allowed_destinations:
        try:
            address = parse_address(text)
        except BadInput as error:
            problems.append(error.message)
        else:
            if address.network.value != config.network_id:
                problems.append(f"{text} belongs to {address.network.name.lower()}")
    return problems


def roster(config: GroupConfig) -> Roster:
    """The members by their peer ids; BadInput unless every key has exactly one peer."""
    keys = _member_keys(config)
    extra = config.group_metadata.extra
    named = {name[len(PEER_ENTRY) :]: extra[name] for name in extra if name.startswith(PEER_ENTRY)}
    members = {
        check_peer_id(peer): _key(hex_key, f"{PEER_ENTRY}{peer}") for peer, hex_key in named.items()
    } or {PeerId(key.hex()): key for key in keys}
    if sorted(members.values()) != sorted(keys):
        raise BadInput("each member key belongs to exactly one peer of the group's metadata")
    return members


def _member_keys(config: GroupConfig) -> list[PublicKey]:
    try:
        keys = [parse_public_key(key) for key in config.member_pubkeys]
    except SignatureInvalid as error:
        raise BadInput(f"member_pubkeys: {error.message}") from error
    if len(set(keys)) < len(keys):
        raise BadInput("member_pubkeys: a key is there twice")
    return keys


def _key(hex_key: str, entry: str) -> PublicKey:
    try:
        return parse_public_key(bytes.fromhex(hex_key))
    except ValueError as error:
        raise BadInput(f"{entry} is no public key in hex") from error


def member_key(members: Roster, peer_id: PeerId) -> PublicKey:
    """The key of a member; NotAMember if the peer is none."""
    if peer_id not in members:
        raise NotAMember(f"{peer_id!r} is not in the group")
    return members[peer_id]
