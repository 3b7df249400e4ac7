"""Traceparents: what of a client's header is believed."""

import pytest

from omni_jobs.tracing.traceparent import span_of, trace_of, traceparent_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize("given", [GOOD, f"01-{TRACE}-{SPAN}-00-more", f"cc-{TRACE}-{SPAN}-01"])
def test_a_clients_span_is_taken(given: str) -> None:
    found = traceparent_of([(b"host", b"x"), (b"traceparent", given.encode())])
    assert found == given[:55]
    assert (trace_of(found), span_of(found)) == (TRACE, SPAN)


@pytest.mark.parametrize(
    "given",
    [
        "",
        GOOD.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"{GOOD}-more",
        f"01-{TRACE}-{SPAN}-01more",
        GOOD[:-1],
        f"00-{TRACE[:-1]}\u00e4-{SPAN}-01",
    ],
)
def test_anything_else_is_passed_over(given: str) -> None:
    assert traceparent_of([(b"traceparent", given.encode("latin-1"))]) is None
    assert traceparent_of([(b"traceparent", GOOD.encode()), (b"traceparent", GOOD.encode())]) is None
