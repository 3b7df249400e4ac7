"""By what clients are told apart whose tenant is not known."""

import pytest

from omni_jobs.http.request_parameters import network_of, preferred_wait


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::", "2001:db8:1:3::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("unknown", "unknown"),
    ],
)
def test_the_network_of_an_address(address: str, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ([], 0),
        (["wait=20"], 20),
        (["respond-async, wait=7"], 7),
        (["respond-async", "WAIT = 7"], 7),
        (['wait="9"; strict=yes'], 9),
        (["wait=61"], 60),
        (["wait=999999999"], 60),
        (["wait=5, wait=6"], 5),
        (["wait=-1"], 0),
        (["wait=1.5"], 0),
        (["await=5"], 0),
        (["wait=" + "9" * 900], 0),
    ],
)
def test_the_wait_that_a_request_prefers(headers: list[str], seconds: int) -> None:
    assert preferred_wait(headers) == seconds
