"""Which addresses are the internet's: every form in which one that is not can be written or carried."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_jobs.fetch.addresses import is_public

NOT_PUBLIC_4 = {
    "unspecified": "0.0.0.0/8",
    "private": "10.0.0.0/8",
    "another private": "172.16.0.0/12",
    "a third": "192.168.0.0/16",
    "carrier-grade NAT": "100.64.0.0/10",
    "loopback": "127.0.0.0/8",
    "link-local": "169.254.0.0/16",
    "protocols'": "192.0.0.0/24",
    "benchmarks'": "198.18.0.0/15",
    "multicast": "224.0.0.0/4",
    "reserved": "240.0.0.0/4",
}
NOT_PUBLIC_6 = {
    "unspecified": "::/128",
    "loopback": "::1/128",
    "IPv4-compatible": "::/96",
    "IPv4-mapped": "::ffff:0:0/96",
    "IPv4-translated": "::ffff:0:0:0/96",
    "NAT64": "64:ff9b::/96",
    "a network's own NAT64": "64:ff9b:1::/48",
    "discard": "100::/64",
    "Teredo": "2001::/32",
    "ORCHID": "2001:20::/28",
    "documents'": "2001:db8::/32",
    "6to4": "2002::/16",
    "unique local": "fc00::/7",
    "link-local": "fe80::/10",
    "site-local": "fec0::/10",
    "multicast": "ff00::/8",
}
IPV4 = st.integers(0, 2**32 - 1).map(IPv4Address)


@pytest.mark.parametrize("network", NOT_PUBLIC_4.values(), ids=NOT_PUBLIC_4)
@given(data=st.data())
def test_no_address_of_a_special_network_is_public(network: str, data: st.DataObject) -> None:
    within = IPv4Network(network)
    at = data.draw(st.integers(0, within.num_addresses - 1))
    for address in (within[0], within[-1], within[at]):
        assert not is_public(address)


@pytest.mark.parametrize("network", NOT_PUBLIC_6.values(), ids=NOT_PUBLIC_6)
@given(data=st.data())
def test_no_address_of_a_special_ipv6_network_is_public(network: str, data: st.DataObject) -> None:
    within = IPv6Network(network)
    at = data.draw(st.integers(0, within.num_addresses - 1))
    for address in (within[0], within[-1], within[at]):
        assert not is_public(address)


@given(IPV4)
def test_no_ipv6_address_that_carries_an_ipv4_address_is_public(inner: IPv4Address) -> None:
    """Not even one of the internet's: who translates it decides where it leads."""
    number = int(inner)
    carriers = (
        IPv6Address(number),
        IPv6Address((0xFFFF << 32) | number),
        IPv6Address((0x64FF9B << 96) | number),
        IPv6Address((0x2002 << 112) | (number << 80) | 1),
        IPv6Address((0x20010000 << 96) | (number ^ 0xFFFFFFFF)),
    )
    assert not any(is_public(address) for address in carriers)


@given(IPV4)
def test_python_calls_all_that_is_public_global(address: IPv4Address) -> None:
    assert not is_public(address) or (address.is_global and not address.is_private)


@pytest.mark.parametrize(
    "address",
    ["168.63.129.16", "169.254.169.254", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fe80::a9fe:a9fe"],
)
def test_no_service_of_a_cloud_is_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "1.1.1.1", "2606:4700::1111", "2a00:1450:4001::8"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(ip_address(address))


def test_an_address_of_one_interface_is_not() -> None:
    assert not is_public(IPv6Address("2606:4700::1111%eth0"))
