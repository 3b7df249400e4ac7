"""The methods of both clients are the calls: all of them, with their documentation."""

import inspect
import pydoc

import pytest

from omni_jobs.client import AsyncClient, Client
from omni_jobs.client.calls import Calls
from omni_jobs.client.methods import ClientMethods

CALLS = {name: call for name, call in vars(Calls).items() if inspect.isfunction(call) and not name.startswith("_")}
SEVERAL = {"submit_bulk", "watch", "stream", "artifact_chunks"}


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_every_call_is_a_method(client: type) -> None:
    methods = {name for name, _ in inspect.getmembers(client, inspect.isfunction) if not name.startswith("_")}
    assert methods - {"close"} == set(CALLS)
    assert len(CALLS) == 30


@pytest.mark.parametrize("name", sorted(CALLS))
def test_it_is_described_and_says_what_it_gives(name: str) -> None:
    of_call = inspect.signature(CALLS[name])
    for client in (Client, AsyncClient):
        method = getattr(client, name)
        signature = inspect.signature(method)
        assert method.__doc__ == CALLS[name].__doc__
        assert list(signature.parameters.values()) == list(of_call.parameters.values())
        assert "Steps" not in str(signature)
        assert "Items" not in str(signature)
        assert inspect.iscoroutinefunction(method) == (client is AsyncClient and name not in SEVERAL)


def test_what_both_have_shows_the_calls() -> None:
    assert ClientMethods.submit is Calls.submit  # type: ignore[comparison-overlap]
    assert "Submit a job" in pydoc.plain(pydoc.render_doc(ClientMethods))


def test_the_help() -> None:
    text = pydoc.plain(pydoc.render_doc(AsyncClient.submit))
    assert "async submit(self, body: 'Mapping[str, Any]'" in text
    assert "-> 'JobView'" in text
    assert "IdempotencyKeyReused: if the idempotency key names a job of another body." in text
    assert "-> 'AsyncIterator[JobView]'" in pydoc.plain(pydoc.render_doc(AsyncClient.watch))
    assert "-> 'Iterator[JobView]'" in pydoc.plain(pydoc.render_doc(Client.watch))
