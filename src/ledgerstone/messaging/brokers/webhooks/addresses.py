"""The addresses that a webhook may connect to.

The URL of a webhook often comes from outside. Its author, or the DNS entry of its host, must not
reach hosts that only this machine can reach. So the allowed addresses are listed, not the forbidden
ones: an address that is in no list is refused.
"""

from __future__ import annotations

from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address

PRIVATE_4 = [
    IPv4Network(network)
    for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "100.64.0.0/10")
]
PRIVATE_6 = [IPv6Network("fc00::/7"), IPv6Network("::1/128")]

# Networks that `is_global` accepts in some versions of Python.
NOT_PUBLIC_4 = [
    IPv4Network(network) for network in ("192.0.0.0/24", "192.88.99.0/24", "224.0.0.0/4")
]
# All assigned networks lie in here. Outside are addresses that represent others: IPv4 written as
# IPv6 (::ffff:0:0/96, ::/96) and NAT64 (64:ff9b::/96, 64:ff9b:1::/48).
PUBLIC_6 = IPv6Network("2000::/3")
# Teredo and other protocol assignments, documentation, 6to4.
NOT_PUBLIC_6 = [
    IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
]


class AddressScope(Enum):
    """The network of an address."""

    PUBLIC = "public"
    PRIVATE = "private"
    """A private network: RFC 1918, shared address space, unique local, this machine."""
    NOWHERE = "nowhere"
    """No receiver has it: link-local (cloud metadata), multicast, reserved."""


def reach_of(address: str) -> AddressScope:
    """The network of the address; NOWHERE if it cannot be parsed."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return AddressScope.NOWHERE
    if isinstance(parsed, IPv4Address):
        private = any(parsed in network for network in PRIVATE_4)
        public = parsed.is_global and not any(parsed in network for network in NOT_PUBLIC_4)
    else:
        # An address with a zone names an interface of this machine.
        private = parsed.scope_id is None and any(parsed in network for network in PRIVATE_6)
        public = (
            parsed.scope_id is None
            and parsed in PUBLIC_6
            and parsed.is_global
            and not any(parsed in network for network in NOT_PUBLIC_6)
        )
    if private:
        return AddressScope.PRIVATE
    return AddressScope.PUBLIC if public else AddressScope.NOWHERE
